-- Named queries of the local store: a name, a line on what it is for, the statement.

-- place --
-- Where the next entry goes: the newest entry (nearly always this device's own), whether task and
-- agent are known, this device's highest number in the task, the task's newest checkpoint.
SELECT h.device_id, h.device_seq, h.chain, h.hlc, t.id IS NOT NULL,
  EXISTS (SELECT 1 FROM participants p WHERE p.agent_id = ?2 AND p.task_id = ?1),
  max(coalesce(t.task_seq, 0), coalesce(
    (SELECT c.task_seq FROM checkpoints c WHERE c.task_id = ?1 AND c.device_id = ?3
     ORDER BY c.hlc DESC, c.id DESC LIMIT 1), 0)),
  (SELECT c.id FROM checkpoints c WHERE c.task_id = ?1 ORDER BY c.hlc DESC, c.id DESC LIMIT 1)
FROM (SELECT 1)
LEFT JOIN log h ON h.seq = (SELECT max(seq) FROM log)
LEFT JOIN tasks t ON t.id = ?1

-- own_head --
-- This device's newest entry, for when another device's came last.
SELECT device_id, device_seq, chain, hlc FROM log
WHERE device_id = ? ORDER BY seq DESC LIMIT 1

-- append --
-- One entry, as it stays.
INSERT INTO log (entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at,
                 key_id, meta, hash, previous, chain, signature, effective_hlc, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- add_checkpoint --
-- The first version of a checkpoint.
INSERT INTO checkpoints (id, task_id, agent_id, agent_type, iteration, phase, status, reason,
                         tokens, parent_id, final, seq, first_seq, device_id, task_seq, hlc,
                         created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- change_checkpoint --
-- A later version; its place in the task stays that of the first.
UPDATE checkpoints SET agent_id = ?, agent_type = ?, iteration = ?, phase = ?, status = ?,
  reason = ?, tokens = ?, parent_id = ?, final = ?, seq = ?
WHERE id = ?

-- add_task --
-- A task met for the first time.
INSERT INTO tasks (id, status, budget, retention, task_seq, revision, seq, created_at)
VALUES (?, '', NULL, 'default', 0, '', 0, ?)

-- count_task --
-- One more entry of a known task, other than a new checkpoint.
UPDATE tasks SET task_seq = ? WHERE id = ?

-- describe_task --
-- What a task entry says about its task.
UPDATE tasks SET status = ?, budget = ?, retention = ?, revision = ?, seq = ? WHERE id = ?

-- add_participant --
-- An agent new to a task.
INSERT OR IGNORE INTO participants (agent_id, task_id) VALUES (?, ?)

-- add_link --
-- A link; setting it again makes it the newest.
INSERT INTO links (child_id, parent_id, hlc, revision, seq) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (child_id, parent_id)
DO UPDATE SET hlc = excluded.hlc, revision = excluded.revision, seq = excluded.seq

-- current_id --
-- A task's newest checkpoint, whether intact or not.
SELECT id FROM checkpoints WHERE task_id = ? ORDER BY hlc DESC, id DESC LIMIT 1

-- checkpoint --
-- One checkpoint with its entry.
SELECT c.*, l.*,
  (SELECT k.parent_id FROM links k WHERE k.child_id = c.id
   ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1)
FROM checkpoints c LEFT JOIN log l ON l.seq = c.seq WHERE c.id = ?

-- latest --
-- A task's newest checkpoint with its entry.
SELECT c.*, l.*,
  (SELECT k.parent_id FROM links k WHERE k.child_id = c.id
   ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1)
FROM checkpoints c LEFT JOIN log l ON l.seq = c.seq
WHERE c.task_id = ? ORDER BY c.hlc DESC, c.id DESC LIMIT 1

-- history --
-- A task's checkpoints, newest first.
SELECT c.*, l.*,
  (SELECT k.parent_id FROM links k WHERE k.child_id = c.id
   ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1)
FROM checkpoints c LEFT JOIN log l ON l.seq = c.seq
WHERE c.task_id = ? ORDER BY c.hlc DESC, c.id DESC LIMIT ?

-- by_agent --
-- An agent's checkpoints in a time range, newest first, through the tasks it took part in.
SELECT c.*, l.*,
  (SELECT k.parent_id FROM links k WHERE k.child_id = c.id
   ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1)
FROM participants p
JOIN checkpoints c ON c.task_id = p.task_id AND c.agent_id = p.agent_id
LEFT JOIN log l ON l.seq = c.seq
WHERE p.agent_id = ? AND c.hlc >= ? AND c.hlc < ?
ORDER BY c.hlc DESC, c.id DESC LIMIT ?

-- by_time --
-- Everybody's checkpoints created in a time range, newest first.
SELECT c.*, l.*,
  (SELECT k.parent_id FROM links k WHERE k.child_id = c.id
   ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1)
FROM log f JOIN checkpoints c ON c.id = f.entity_id AND c.first_seq = f.seq
LEFT JOIN log l ON l.seq = c.seq
WHERE f.entity = 'checkpoint' AND c.hlc >= ? AND c.hlc < ? ORDER BY f.seq DESC LIMIT ?

-- page_before --
-- Checkpoints with their current entry, newest version first, a page at a time.
SELECT c.*, l.*,
  (SELECT k.parent_id FROM links k WHERE k.child_id = c.id
   ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1)
FROM log l JOIN checkpoints c ON c.id = l.entity_id AND c.seq = l.seq
WHERE l.entity = 'checkpoint' AND l.seq < ? ORDER BY l.seq DESC LIMIT ?

-- checkpoint_ids --
-- Checkpoints whose id begins so.
SELECT id FROM checkpoints WHERE id >= ? AND id < ? ORDER BY id LIMIT 3

-- entry_ids --
-- Entries whose id begins so.
SELECT entry_id FROM log
WHERE entry_id <> entity_id AND entry_id >= ?1 AND entry_id < ?2
UNION
SELECT l.entry_id FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.id >= ?1 AND c.id < ?2 AND l.entry_id = c.id
ORDER BY 1 LIMIT 3

-- entry --
-- One entry of the log.
SELECT * FROM log WHERE entry_id = ?1 AND entry_id <> entity_id
UNION ALL
SELECT l.* FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.id = ?1 AND l.entry_id = c.id

-- links_of --
-- Parents linked to a checkpoint after the fact, newest first.
SELECT parent_id FROM links WHERE child_id = ? ORDER BY hlc DESC, parent_id DESC

-- task --
-- One task with the entry that describes it.
SELECT t.*, l.* FROM tasks t LEFT JOIN log l ON l.seq = t.seq WHERE t.id = ?

-- task_ids --
-- All tasks, newest last.
SELECT id FROM tasks ORDER BY created_at, id

-- task_heads --
-- Checkpoints of a task that no other has as its parent: more than one means a fork.
SELECT c.id FROM checkpoints c WHERE c.task_id = ?1
  AND c.id NOT IN (SELECT parent_id FROM checkpoints WHERE task_id = ?1)
ORDER BY c.hlc DESC, c.id DESC

-- task_cost --
-- What a task has cost so far, per agent.
SELECT agent_id, agent_type, COUNT(*), SUM(tokens), MAX(iteration)
FROM checkpoints WHERE task_id = ? GROUP BY agent_id, agent_type ORDER BY SUM(tokens) DESC, agent_id

-- task_status --
-- The newest checkpoint's status, for a task that has none of its own.
SELECT status FROM checkpoints WHERE task_id = ? ORDER BY hlc DESC, id DESC LIMIT 1

-- add_problem --
-- Damage met while reading.
INSERT INTO problems (entry_id, problem, found_at) VALUES (?, ?, ?)
ON CONFLICT (entry_id, problem) DO UPDATE SET found_at = excluded.found_at

-- problems --
-- Damage met so far.
SELECT entry_id, problem, found_at FROM problems ORDER BY found_at, entry_id

-- clear_view_problems --
-- A rebuild has mended the views.
DELETE FROM problems WHERE problem LIKE 'view %' OR problem LIKE 'the view row %'

-- clear_problems --
-- An audit found everything sound.
DELETE FROM problems

-- entries_after --
-- The next entries of the log in the order they were written here.
SELECT * FROM log WHERE seq > ? ORDER BY seq LIMIT ?

-- entry_about --
-- An entry at a place in the log, or about an entity: to name what a view row belongs to.
SELECT entry_id, device_id FROM log WHERE seq = ? OR entity_id = ? LIMIT 1

-- all_ids --
-- Every entry's id.
SELECT entry_id FROM log

-- stray_rows --
-- Rows of the view that do not lead to an entry of their own checkpoint.
SELECT COUNT(*) FROM checkpoints c LEFT JOIN log l ON l.seq = c.seq WHERE l.entity_id IS NOT c.id

-- audit_list --
-- Entries, newest first, optionally of one task.
SELECT seq, entry_id, device_id, device_seq, entity, entity_id, op, actor, at, meta, hash,
       signature IS NOT NULL
FROM log WHERE ?1 IS NULL OR json_extract(meta, '$.task_id') = ?1 ORDER BY seq DESC LIMIT ?2

-- versions --
-- Everything a view depends on, entity by entity, first version first.
SELECT seq, entry_id, device_id, entity, entity_id, op, bases, at, meta, hash, effective_hlc
FROM log ORDER BY entity, entity_id, effective_hlc, entry_id

-- counts --
-- How much there is.
SELECT (SELECT COUNT(*) FROM log), (SELECT MAX(seq) FROM log), (SELECT COUNT(*) FROM checkpoints),
       (SELECT COUNT(*) FROM tasks), (SELECT COUNT(*) FROM problems)

-- task_sizes --
-- The tasks with the most checkpoints.
SELECT task_id, COUNT(*), SUM(tokens) FROM checkpoints
GROUP BY task_id ORDER BY COUNT(*) DESC, task_id LIMIT ?

-- state --
-- One value of this device's own state.
SELECT value FROM state WHERE name = ?

-- set_state --
-- Keep a value of this device's own state; the first one stays.
INSERT OR IGNORE INTO state (name, value) VALUES (?, ?)

-- add_device --
-- Pin a device's key; the first one stays.
INSERT OR IGNORE INTO devices (device_id, public_key, added_at) VALUES (?, ?, ?)

-- device_keys --
-- The keys that signatures are checked with.
SELECT device_id, public_key FROM devices
