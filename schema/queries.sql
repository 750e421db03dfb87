-- Named queries of the local store: a name, a line on what it is for, the statement.
-- `CAST` around a kind that is a parameter: SQLite would prepare the statement anew for each value, to
-- see whether a partial index for that kind serves it.

-- place --
-- Where the next entry goes: the newest entry (nearly always this device's own), the latest clock
-- (an entry of its own that came back may be the newest), since when the task and whether the agent
-- are known, this device's highest number in the task (which is the newest checkpoint's, if that is
-- its own, or the newest entry's, if that is of a graph), the task's current checkpoint, whether the
-- agent is fenced off from the task, this device's id: a sync may have changed it. At the end, the
-- newest entry's meta, if `numbers` may lack what it says.
SELECT h.device_id, h.device_seq, h.chain,
  max(coalesce(h.effective_hlc, 0), coalesce(c.hlc, 0),
      coalesce((SELECT json_extract(value, '$[2]') FROM state WHERE name = 'anchor'), 0)),
  coalesce(t.created_at, ''),
  EXISTS (SELECT 1 FROM participants p WHERE p.agent_id = ?2 AND p.task_id = ?1),
  max(coalesce(n.task_seq, 0), coalesce(iif(c.device_id = s.value, c.task_seq, 0), 0),
      iif(substr(h.entity, 1, 5) = 'graph' AND h.device_id = s.value AND json_valid(h.meta)
          AND h.meta ->> '$.task_id' = ?1, h.meta ->> '$.task_seq', 0)),
  CASE WHEN NOT EXISTS (SELECT 1 FROM fences WHERE task_id = ?1) THEN c.id ELSE (
    SELECT k.id FROM checkpoints k WHERE k.task_id = ?1 AND NOT EXISTS (
      SELECT 1 FROM fences f WHERE f.task_id = ?1 AND f.agent_id = k.agent_id
        AND f.device_id = k.device_id AND k.hlc > f.since AND k.hlc < f.until)
    ORDER BY k.hlc DESC, k.id DESC LIMIT 1) END,
  EXISTS (SELECT 1 FROM fences f WHERE f.task_id = ?1 AND f.agent_id = ?2
    AND f.device_id = s.value AND f.until = 9223372036854775807),
  s.value, iif(substr(h.entity, 1, 5) = 'graph' AND h.device_id = s.value, h.meta, NULL)
FROM state s
LEFT JOIN log h ON h.seq = (SELECT max(seq) FROM log)
LEFT JOIN tasks t ON t.id = ?1
LEFT JOIN numbers n ON n.task_id = ?1
LEFT JOIN checkpoints c ON c.id =
  (SELECT k.id FROM checkpoints k WHERE k.task_id = ?1 ORDER BY k.hlc DESC, k.id DESC LIMIT 1)
WHERE s.name = 'device_id'

-- graph_place --
-- The same for an entry of a graph's thread, as far as it matters there; the newest entry's number is
-- left to whoever asks.
SELECT h.device_id, h.device_seq, h.chain,
  max(coalesce(h.effective_hlc, 0), coalesce(
    (SELECT json_extract(value, '$[2]') FROM state WHERE name = 'anchor'), 0)),
  coalesce((SELECT created_at FROM tasks WHERE id = ?1), ''), 1,
  max(coalesce((SELECT task_seq FROM numbers WHERE task_id = ?1), 0),
      coalesce((SELECT iif(k.device_id = s.value, k.task_seq, 0) FROM checkpoints k
        WHERE k.task_id = ?1 ORDER BY k.hlc DESC, k.id DESC LIMIT 1), 0)),
  NULL, 0, s.value, iif(substr(h.entity, 1, 5) = 'graph' AND h.device_id = s.value, h.meta, NULL)
FROM state s LEFT JOIN log h ON h.seq = (SELECT max(seq) FROM log)
WHERE s.name = 'device_id'

-- keep_number --
-- The newest entry's number in its task, before another one takes its place at the end of the log.
INSERT INTO numbers (task_id, task_seq)
SELECT h.meta ->> '$.task_id', h.meta ->> '$.task_seq' FROM log h
JOIN state s ON s.name = 'device_id' AND s.value = h.device_id
WHERE h.seq = (SELECT max(seq) FROM log) AND substr(h.entity, 1, 5) = 'graph'
  AND json_valid(h.meta)
ON CONFLICT (task_id) DO UPDATE SET task_seq = max(task_seq, excluded.task_seq)

-- append --
-- One entry, as it stays.
INSERT INTO log (entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at,
                 key_id, meta, hash, previous, chain, signature, effective_hlc, body)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- append_after --
-- One entry, if the one that it follows is the newest here as it was, and this device still has the
-- same id. Alone, so that it takes one step where a transaction takes four.
INSERT INTO log (entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at,
                 key_id, meta, hash, previous, chain, signature, effective_hlc, body)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18
FROM log h JOIN state s ON s.name = 'device_id' AND s.value = ?2
WHERE h.seq = (SELECT max(seq) FROM log) AND h.chain = ?14 AND h.effective_hlc = ?19

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
-- A task met, perhaps for the first time; it is as old as its oldest entry.
INSERT INTO tasks (id, status, budget, retention, revision, seq, created_at)
VALUES (?1, '', NULL, 'default', '', 0, ?2)
ON CONFLICT (id) DO UPDATE SET created_at = excluded.created_at
  WHERE excluded.created_at < tasks.created_at

-- began --
-- The oldest entry of a task that is said to have begun at some time: reads the whole log, if it is.
SELECT MIN(l.effective_hlc)
FROM tasks t JOIN log l ON iif(json_valid(l.meta), l.meta ->> 'task_id', '') = t.id
WHERE t.id = ?1 AND t.created_at = ?2
  AND (l.refused IS NULL OR l.body <> x'' OR l.purged IS NOT NULL)

-- date_task --
-- A task whose oldest entry has a later date than before.
UPDATE tasks SET created_at = ?2 WHERE id = ?1

-- count_task --
-- This device's highest number in a task.
INSERT INTO numbers (task_id, task_seq) VALUES (?, ?)
ON CONFLICT (task_id) DO UPDATE SET task_seq = max(task_seq, excluded.task_seq)

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
-- A task's newest checkpoint, whether intact or not, leaving out what those wrote who had lost it.
SELECT c.id FROM checkpoints c WHERE c.task_id = ? AND NOT EXISTS (
    SELECT 1 FROM fences f WHERE f.task_id = c.task_id AND f.agent_id = c.agent_id
      AND f.device_id = c.device_id AND c.hlc > f.since AND c.hlc < f.until)
ORDER BY c.hlc DESC, c.id DESC LIMIT 1

-- current_ids --
-- All of them, newest first.
SELECT c.id FROM checkpoints c WHERE c.task_id = ? AND NOT EXISTS (
    SELECT 1 FROM fences f WHERE f.task_id = c.task_id AND f.agent_id = c.agent_id
      AND f.device_id = c.device_id AND c.hlc > f.since AND c.hlc < f.until)
ORDER BY c.hlc DESC, c.id DESC

-- newest_of_agent --
-- The newest checkpoint of a task that an agent wrote on this device.
SELECT c.id FROM checkpoints c JOIN state s ON s.name = 'device_id' AND s.value = c.device_id
WHERE c.task_id = ? AND c.agent_id = ? ORDER BY c.hlc DESC, c.id DESC LIMIT 1

-- facts --
-- All entries of a kind that is no checkpoint, from some place on. Of one that was refused, other
-- devices have the header alone.
SELECT entry_id, entity_id, op, device_id, actor, at, effective_hlc, seq, meta FROM log
WHERE entity <> 'checkpoint' AND entity = CAST(?1 AS TEXT) AND seq > ?2 AND (refused IS NULL OR body <> x'')
ORDER BY seq

-- facts_about --
-- Those about one thing.
SELECT entry_id, entity_id, op, device_id, actor, at, effective_hlc, seq, meta FROM log
WHERE entity <> 'checkpoint' AND entity = CAST(?1 AS TEXT) AND entity_id = ?2
  AND (refused IS NULL OR body <> x'')
ORDER BY seq

-- facts_about_each --
-- Those about several things.
SELECT entry_id, entity_id, op, device_id, actor, at, effective_hlc, seq, meta
FROM json_each(?2) n CROSS JOIN log
WHERE entity <> 'checkpoint' AND entity = CAST(?1 AS TEXT) AND entity_id = n.value
  AND (refused IS NULL OR body <> x'')
ORDER BY seq

-- handoff_ids --
-- Hand-offs whose id begins so.
SELECT DISTINCT entity_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'handoff' AND entity_id >= ? AND entity_id < ?
ORDER BY entity_id LIMIT 3

-- facts_naming --
-- Those whose header has a value under a name.
SELECT entry_id, entity_id, op, device_id, actor, at, effective_hlc, seq, meta FROM log
WHERE entity <> 'checkpoint' AND entity = CAST(?1 AS TEXT) AND iif(json_valid(meta), meta ->> ?2, NULL) = ?3
  AND (refused IS NULL OR body <> x'')
ORDER BY seq

-- message_ids --
-- Messages whose id begins so.
SELECT DISTINCT entity_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'message' AND entity_id >= ? AND entity_id < ?
ORDER BY entity_id LIMIT 3

-- claim_ahead --
-- A claim that the replica has, and not everything here that it has before it.
SELECT 1 FROM log WHERE entity <> 'checkpoint' AND entity = 'lease'
  AND cloud_seq > (SELECT coalesce(MAX(cloud_seq), 0) FROM batches) LIMIT 1

-- drop_fences --
-- Before a task's claims are folded again.
DELETE FROM fences WHERE task_id = ?

-- put_fence --
-- From when to when what a worker writes about a task is a branch.
INSERT INTO fences VALUES (?, ?, ?, ?, ?)

-- fenced_off --
-- Whether a checkpoint was written by one who had lost the task.
SELECT 1 FROM fences
WHERE task_id = ?1 AND agent_id = ?2 AND device_id = ?3 AND since < ?4 AND until > ?4

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
WHERE c.task_id = ? AND NOT EXISTS (
    SELECT 1 FROM fences f WHERE f.task_id = c.task_id AND f.agent_id = c.agent_id
      AND f.device_id = c.device_id AND c.hlc > f.since AND c.hlc < f.until)
ORDER BY c.hlc DESC, c.id DESC LIMIT 1

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

-- columns --
-- No row: the columns of a checkpoint with its current entry.
SELECT c.*, l.* FROM checkpoints c, log l LIMIT 0

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
WHERE entry_id <> entity_id AND refused IS NULL AND entry_id >= ?1 AND entry_id < ?2
UNION
SELECT entry_id FROM log WHERE refused IS NOT NULL AND entry_id >= ?1 AND entry_id < ?2
UNION
SELECT l.entry_id FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.id >= ?1 AND c.id < ?2 AND l.entry_id = c.id
ORDER BY 1 LIMIT 3

-- entry --
-- One entry of the log; a refused one only if no other has its id.
SELECT * FROM log WHERE entry_id = ?1 AND entry_id <> entity_id AND refused IS NULL
UNION ALL
SELECT l.* FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.id = ?1 AND l.entry_id = c.id
UNION ALL
SELECT * FROM log WHERE entry_id = ?1 AND refused IS NOT NULL

-- stands_before --
-- Whether the second of two checkpoints is the first or one before it, as reads follow parents; it is
-- looked for so far back.
WITH RECURSIVE line (id) AS (
  SELECT ?1
  UNION
  SELECT coalesce((SELECT k.parent_id FROM links k WHERE k.child_id = c.id
    ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1), c.parent_id)
  FROM line n JOIN checkpoints c ON c.id = n.id
  LIMIT ?3)
SELECT 1 FROM line WHERE id = ?2 LIMIT 1

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

-- segments --
-- What each stretch of a task has cost: checkpoints of one agent that follow each other in time.
SELECT agent_id, agent_type, MIN(created_at), MAX(created_at), COUNT(*), SUM(tokens) FROM (
  SELECT *, ROW_NUMBER() OVER (ORDER BY hlc, id)
    - ROW_NUMBER() OVER (PARTITION BY agent_id, device_id ORDER BY hlc, id) AS island
  FROM checkpoints WHERE task_id = ?)
GROUP BY agent_id, device_id, island ORDER BY MIN(hlc)

-- task_status --
-- The newest checkpoint's status, for a task that has none of its own.
SELECT c.status FROM checkpoints c WHERE c.task_id = ? AND NOT EXISTS (
    SELECT 1 FROM fences f WHERE f.task_id = c.task_id AND f.agent_id = c.agent_id
      AND f.device_id = c.device_id AND c.hlc > f.since AND c.hlc < f.until)
ORDER BY c.hlc DESC, c.id DESC LIMIT 1

-- add_problem --
-- Damage met while reading, for the first time: who reads it again changes nothing, and wakes nobody.
INSERT OR IGNORE INTO problems (entry_id, problem, found_at) VALUES (?, ?, ?)

-- problems --
-- Damage met so far.
SELECT entry_id, problem, found_at FROM problems ORDER BY found_at, entry_id

-- clear_view_problems --
-- A rebuild has mended the views.
DELETE FROM problems WHERE problem LIKE 'view %' OR problem LIKE 'the view row %'

-- clear_problems --
-- An audit found everything sound.
DELETE FROM problems

-- clear_problem --
-- An entry was mended.
DELETE FROM problems WHERE entry_id = ?

-- headers_after --
-- The next entries without their bodies; of what was refused, others have no more, and perhaps not
-- even that.
SELECT seq, entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at, key_id,
  meta, hash, previous, chain, signature, effective_hlc, cloud_seq, batch, x'', refused, purged
FROM log WHERE seq > ? AND refused IS NULL ORDER BY seq LIMIT ?

-- gaps --
-- Numbers of devices that are missing between others. Looks through the whole log.
SELECT device_id, before + 1, device_seq - 1 FROM (
  SELECT device_id, device_seq,
    lag(device_seq, 1, 0) OVER (PARTITION BY device_id ORDER BY device_seq) AS before FROM log)
WHERE device_seq > before + 1

-- last_numbers --
-- How far each device's entries go. Looks through the whole log.
SELECT device_id, MAX(device_seq) FROM log GROUP BY device_id

-- task_numbers --
-- All entries of a task: where each stands, and its number in the task. Looks through the whole log.
SELECT seq, device_id, device_seq, CAST(meta ->> '$.task_seq' AS INTEGER) FROM log
WHERE iif(json_valid(meta), meta ->> '$.task_id', NULL) = ?

-- task_versions --
-- All versions of a task's checkpoints, found without the view. Looks through the whole log.
SELECT seq, entry_id, device_id, entity, entity_id, op, bases, at, meta, hash, effective_hlc,
  iif(refused IS NULL, coalesce(cloud_seq, 0), 0), purged IS NOT NULL, refused IS NOT NULL
FROM log WHERE entity = 'checkpoint' AND json_valid(meta)
  AND (meta ->> '$.task_id' = ?1 OR entity_id IN (SELECT id FROM checkpoints WHERE task_id = ?1))
  AND (refused IS NULL OR body <> x'' OR purged IS NOT NULL)
ORDER BY entity_id, effective_hlc, entry_id

-- numbers_in_view --
-- The numbers of a task's checkpoints that the view knows, by device.
SELECT device_id, CAST(task_seq AS INTEGER) FROM checkpoints WHERE task_id = ?

-- newest_but --
-- The clock of a task's newest checkpoint, leaving out some.
SELECT MAX(hlc) FROM checkpoints
WHERE task_id = ? AND id NOT IN (SELECT value FROM json_each(?))

-- strangers --
-- Rows of the view that lead to an entry about another checkpoint.
SELECT c.*, l.entity_id, l.entry_id FROM checkpoints c JOIN log l ON l.seq = c.seq
WHERE c.task_id = ? AND l.entity = 'checkpoint' AND l.entity_id <> c.id

-- drop_stranger --
-- Such a row; its id may be no text.
DELETE FROM checkpoints WHERE seq = ?1 AND id <> ?2

-- drop_checkpoint --
-- A row of the view that the log knows nothing of.
DELETE FROM checkpoints WHERE id = ?

-- entry_of --
-- A device's entry of some number. Looks through the whole log.
SELECT * FROM log WHERE device_id = ? AND device_seq = ?

-- mend_body --
-- A body that was damaged, as it was.
UPDATE log SET body = ?, purged = NULL WHERE seq = ?

-- put_entry --
-- An entry that was damaged, as it was.
INSERT OR REPLACE INTO log
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

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
-- Rows of the view that do not lead to an entry of their own checkpoint, and those that are missing.
SELECT (
  SELECT COUNT(*) FROM checkpoints c LEFT JOIN log l ON l.seq = c.seq WHERE l.entity_id IS NOT c.id
) + (
  SELECT COUNT(*) FROM log l WHERE l.entity = 'checkpoint' AND l.op = 'create' AND l.refused IS NULL
    AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.id = l.entity_id)
)

-- audit_list --
-- Entries, newest first, optionally of one task.
SELECT seq, entry_id, device_id, device_seq, entity, entity_id, op, actor, at, meta, hash,
       signature IS NOT NULL
FROM log WHERE ?1 IS NULL OR json_extract(meta, '$.task_id') = ?1 ORDER BY seq DESC LIMIT ?2

-- versions --
-- Everything a view depends on, entity by entity, first version first. Of an entry that the replica
-- refused, other devices have only the header.
SELECT seq, entry_id, device_id, entity, entity_id, op, bases, at, meta, hash, effective_hlc,
  iif(refused IS NULL, coalesce(cloud_seq, 0), 0), purged IS NOT NULL, refused IS NOT NULL
FROM log WHERE refused IS NULL OR body <> x'' OR purged IS NOT NULL
ORDER BY entity, entity_id, effective_hlc, entry_id

-- versions_of --
-- The versions of one entity.
SELECT seq, entry_id, device_id, entity, entity_id, op, bases, at, meta, hash, effective_hlc,
  iif(refused IS NULL, coalesce(cloud_seq, 0), 0), purged IS NOT NULL, refused IS NOT NULL
FROM log WHERE entity = 'checkpoint' AND CAST(?2 AS TEXT) = 'checkpoint' AND entity_id = ?1
  AND entry_id <> entity_id AND (refused IS NULL OR body <> x'' OR purged IS NOT NULL)
UNION ALL
SELECT seq, entry_id, device_id, entity, entity_id, op, bases, at, meta, hash, effective_hlc,
  iif(refused IS NULL, coalesce(cloud_seq, 0), 0), purged IS NOT NULL, refused IS NOT NULL
FROM log WHERE entity <> 'checkpoint' AND entity = CAST(?2 AS TEXT) AND entity_id = ?1
  AND entry_id <> entity_id AND (refused IS NULL OR body <> x'' OR purged IS NOT NULL)
UNION ALL
SELECT l.seq, l.entry_id, l.device_id, l.entity, l.entity_id, l.op, l.bases, l.at, l.meta, l.hash,
  l.effective_hlc, iif(l.refused IS NULL, coalesce(l.cloud_seq, 0), 0), l.purged IS NOT NULL,
  l.refused IS NOT NULL
FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.id = ?1 AND CAST(?2 AS TEXT) = 'checkpoint' AND l.entry_id = c.id

-- version_at --
-- The version at a place in the log.
SELECT seq, entry_id, device_id, entity, entity_id, op, bases, at, meta, hash, effective_hlc,
  iif(refused IS NULL, coalesce(cloud_seq, 0), 0), purged IS NOT NULL, refused IS NOT NULL
FROM log WHERE seq = ?

-- branch_of --
-- What makes a checkpoint one of its parent's children, and whether it has conflicts.
SELECT task_id, parent_id, device_id, hlc, first_seq,
  EXISTS (SELECT 1 FROM conflicts k WHERE k.entity_id = c.id AND k.kind = 'version')
FROM checkpoints c WHERE id = ?

-- put_checkpoint --
-- A checkpoint's row, worked out from all its versions.
INSERT OR REPLACE INTO checkpoints
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- put_conflict --
-- A version or a branch that lost.
INSERT OR REPLACE INTO conflicts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)

-- drop_version_conflicts --
-- Before the conflicts between an entity's versions are worked out again.
DELETE FROM conflicts WHERE entity_id = ? AND entity = ? AND kind = 'version'

-- drop_fork --
-- Before the conflicts between a parent's children are worked out again.
DELETE FROM conflicts WHERE entity_id = ? AND kind = 'fork'

-- oldest --
-- How many of some checkpoints were created once, with an id of our making, and the oldest of them.
SELECT COUNT(*), MIN(c.hlc) FROM checkpoints c JOIN log f ON f.seq = c.first_seq
WHERE c.id IN (SELECT value FROM json_each(?)) AND c.id = f.entry_id AND NOT EXISTS (
  SELECT 1 FROM log o
  WHERE o.entity = 'checkpoint' AND o.entity_id = c.id AND o.entry_id <> o.entity_id
    AND o.op = 'create')

-- firsts --
-- The first entries of some checkpoints.
SELECT first_seq FROM checkpoints WHERE id IN (SELECT value FROM json_each(?))

-- moved --
-- Where those of some checkpoints stand now that have later versions.
SELECT task_id, parent_id FROM checkpoints
WHERE id IN (SELECT value FROM json_each(?)) AND seq <> first_seq

-- branches --
-- Checkpoints of a task by their parent, as far as the replica has them.
SELECT c.parent_id, c.id, c.device_id, c.hlc, f.entry_id, f.at
FROM checkpoints c JOIN log f ON f.seq = c.first_seq
WHERE c.task_id = ?1 AND c.hlc >= ?2 AND f.cloud_seq IS NOT NULL AND f.refused IS NULL
UNION
SELECT c.parent_id, c.id, c.device_id, c.hlc, f.entry_id, f.at
FROM checkpoints c JOIN log f ON f.seq = c.first_seq
WHERE c.parent_id IN (SELECT value FROM json_each(?3)) AND c.seq <> c.first_seq
  AND c.task_id = ?1 AND f.cloud_seq IS NOT NULL AND f.refused IS NULL
ORDER BY 1

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

-- whole_state --
-- All of it.
SELECT name, value FROM state

-- set_state --
-- Keep a value of this device's own state; the first one stays.
INSERT OR IGNORE INTO state (name, value) VALUES (?, ?)

-- add_device --
-- Pin a device's key; the first one stays.
INSERT OR IGNORE INTO devices (device_id, public_key, added_at) VALUES (?, ?, ?)

-- device_keys --
-- The keys that signatures are checked with.
SELECT device_id, public_key FROM devices

-- parents --
-- A checkpoint and those before it with their entries, nearest first.
WITH RECURSIVE line (depth, id, parent) AS (
  SELECT 0, c.id, coalesce((SELECT k.parent_id FROM links k WHERE k.child_id = c.id
    ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1), c.parent_id)
  FROM checkpoints c WHERE c.id = ?1
  UNION ALL
  SELECT n.depth + 1, c.id, coalesce((SELECT k.parent_id FROM links k WHERE k.child_id = c.id
    ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1), c.parent_id)
  FROM line n JOIN checkpoints c ON c.id = n.parent WHERE n.depth + 1 < ?2)
SELECT c.*, l.*, iif(n.parent <> c.parent_id, n.parent, NULL)
FROM line n JOIN checkpoints c ON c.id = n.id LEFT JOIN log l ON l.seq = c.seq ORDER BY n.depth

-- signature_from --
-- Where a device's next signature stands, from some place on, as far as it is looked for.
SELECT seq FROM log
WHERE seq BETWEEN ?1 AND ?1 + ?3 AND device_id = ?2 AND signature IS NOT NULL ORDER BY seq LIMIT 1

-- headers_between --
-- A device's entries between two places, without their bodies.
SELECT seq, entry_id, device_id, device_seq, entity, entity_id, op, bases, hlc, actor, at, key_id,
  meta, hash, previous, chain, signature, effective_hlc, cloud_seq, batch, x'', refused, purged
FROM log WHERE seq BETWEEN ?2 AND ?3 AND device_id = ?1 ORDER BY seq

-- choices --
-- How branches were decided, the newest word last.
SELECT entity_id, json_extract(meta, '$.resolution') FROM log
WHERE entity = 'choice' AND (refused IS NULL OR body <> x'') ORDER BY effective_hlc, entry_id

-- put_state --
-- Keep a value of this device's own state; the newest one stays.
INSERT INTO state (name, value) VALUES (?, ?)
ON CONFLICT (name) DO UPDATE SET value = excluded.value

-- pending --
-- Entries of some devices that the replica has not acknowledged.
SELECT * FROM log
WHERE seq > ? AND cloud_seq IS NULL AND device_id IN (SELECT value FROM json_each(?)) ORDER BY seq

-- pending_count --
-- How many those are.
SELECT COUNT(*) FROM log
WHERE seq > ? AND cloud_seq IS NULL AND device_id IN (SELECT value FROM json_each(?))

-- pending_at_most --
-- The same, but no further than that.
SELECT COUNT(*) FROM (
  SELECT 1 FROM log
  WHERE seq > ? AND cloud_seq IS NULL AND device_id IN (SELECT value FROM json_each(?)) LIMIT ?)

-- numbered_at --
-- Whose entry stands at a place in the log, and its number.
SELECT device_id, device_seq FROM log WHERE seq = ?

-- newest --
-- The newest entry's place and device.
SELECT seq, device_id, device_seq, chain, effective_hlc FROM log ORDER BY seq DESC LIMIT 1

-- mark --
-- What the replica said about an entry.
UPDATE log SET cloud_seq = ?, batch = ?, effective_hlc = ?, signature = coalesce(signature, ?),
  refused = ?
WHERE seq = ?

-- placed --
-- Where an entry stands, without its content.
SELECT seq, chain, cloud_seq, batch, effective_hlc, entity, entity_id, refused FROM log
WHERE entry_id = ?1 AND entry_id <> entity_id AND refused IS NULL
UNION
SELECT l.seq, l.chain, l.cloud_seq, l.batch, l.effective_hlc, l.entity, l.entity_id,
  l.refused
FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.id = ?1 AND l.entry_id = c.id
UNION
SELECT seq, chain, cloud_seq, batch, effective_hlc, entity, entity_id, refused FROM log
WHERE entry_id = ?1 AND refused IS NOT NULL

-- receive --
-- An entry of another device, or one of ours that came back.
INSERT INTO log VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- receive_checkpoint --
-- The first version of a checkpoint, unless there are others.
INSERT OR IGNORE INTO checkpoints VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- earlier_than_parent --
-- Whether one of some new checkpoints, given with their parents, may be earlier than its parent.
SELECT 1 FROM json_each(?) n LEFT JOIN checkpoints p ON p.id = n.value ->> 0
WHERE n.value ->> 0 <> '' AND (p.id IS NULL OR p.hlc > n.value ->> 1) LIMIT 1

-- any_earlier_than_parent --
-- Whether any checkpoint is earlier than its parent, or names one that is not there; but for those
-- that have moved, which an index leads to.
SELECT 1 FROM checkpoints c LEFT JOIN checkpoints p ON p.id = c.parent_id
WHERE c.parent_id <> '' AND c.seq = c.first_seq AND (p.id IS NULL OR p.hlc > c.hlc) LIMIT 1

-- several_writers --
-- Whether several devices wrote checkpoints of a task since some time, or older ones have moved.
SELECT MIN(device_id) <> MAX(device_id) OR EXISTS (
  SELECT 1 FROM checkpoints
  WHERE parent_id IN (SELECT value FROM json_each(?3)) AND seq <> first_seq)
FROM checkpoints WHERE task_id = ?1 AND hlc >= ?2

-- cursor --
-- How far was pulled.
SELECT cloud_seq, batch FROM batches ORDER BY cloud_seq DESC LIMIT 1

-- add_batch --
-- The last number of a batch that was pulled.
INSERT OR REPLACE INTO batches (cloud_seq, batch) VALUES (?, ?)

-- batches_before --
-- Batches that were pulled, newest first.
SELECT cloud_seq, batch FROM batches WHERE cloud_seq < ? ORDER BY cloud_seq DESC LIMIT ?

-- drop_batches --
-- Go back to an earlier cursor.
DELETE FROM batches WHERE cloud_seq > ?

-- forget_places --
-- The replica lost these numbers.
UPDATE log SET cloud_seq = NULL WHERE cloud_seq > ?

-- forget_place --
-- The replica does not have this entry.
UPDATE log SET cloud_seq = NULL WHERE seq = ?

-- devices --
-- The devices known here, and how far.
SELECT device_id, public_key, device_seq, chain FROM devices

-- put_head --
-- How far a device's chain is known here.
UPDATE devices SET device_seq = ?, chain = ? WHERE device_id = ?

-- chains_at --
-- A device's chain values at some of its numbers. Looks through the whole log.
SELECT device_seq, chain FROM log
WHERE device_id = ?1 AND device_seq IN (SELECT value FROM json_each(?2)) ORDER BY seq

-- ids_at --
-- A device's entries at some of its numbers. Looks through the whole log.
SELECT device_seq, entry_id, chain, seq FROM log
WHERE device_id = ?1 AND device_seq IN (SELECT value FROM json_each(?2))

-- seq_of --
-- Where a device's entry of some number stands. Looks through the whole log.
SELECT seq, chain FROM log WHERE device_id = ? AND device_seq = ?

-- seq_taken --
-- Whether a place in the log is taken.
SELECT 1 FROM log WHERE seq = ?

-- previous_at --
-- The chain value that an entry continues.
SELECT previous FROM log WHERE seq = ?

-- complete --
-- An entry of which only the header was here, since the replica had refused it.
UPDATE log SET body = ?, purged = ? WHERE seq = ?

-- seqs_after --
-- Where a device's entries after some number stand. Looks through the whole log.
SELECT seq FROM log WHERE device_id = ? AND device_seq > ? ORDER BY seq

-- entry_at --
-- The entry at a place in the log.
SELECT * FROM log WHERE seq = ?

-- first_after --
-- Where a device's entries after some number begin.
SELECT MIN(seq) FROM log WHERE device_id = ? AND device_seq > ?

-- once_there --
-- The last number of a device that the replica is known to have had, whatever it has lost since:
-- then only the places are forgotten. Looks through the whole log.
SELECT coalesce(MAX(device_seq), 0) FROM log WHERE device_id = ? AND batch IS NOT NULL

-- forget_places_of --
-- The replica lost these entries of a device.
UPDATE log SET cloud_seq = NULL WHERE device_id = ? AND device_seq > ?

-- rechain --
-- The only rewrite there is: an entry under another device id.
UPDATE log SET device_id = ?, device_seq = ?, meta = ?, previous = ?, chain = ?, signature = ?,
  effective_hlc = hlc, cloud_seq = NULL, batch = NULL, refused = NULL
WHERE seq = ?

-- recount --
-- This device's highest numbers, from the log.
INSERT INTO numbers
SELECT json_extract(meta, '$.task_id'), MAX(json_extract(meta, '$.task_seq')) FROM log
WHERE device_id = (SELECT value FROM state WHERE name = 'device_id') GROUP BY 1

-- clear_numbers --
-- A new device begins to count.
DELETE FROM numbers

-- take_out --
-- What stands in the way of what its device goes on with; it is in quarantine by then.
DELETE FROM log WHERE seq = ?

-- fingerprints --
-- Everything that both sides must have, device by device.
SELECT device_id, device_seq, chain, entry_id FROM log ORDER BY device_id, device_seq

-- quarantine --
-- An entry that one side did not take.
INSERT INTO quarantine (entry_id, device_id, reason, since, state, content)
VALUES (?, ?, ?, ?, 'open', ?)
ON CONFLICT (entry_id) DO UPDATE SET reason = excluded.reason, state = 'open'

-- quarantined --
-- What is in quarantine.
SELECT entry_id, device_id, reason, since, state FROM quarantine
WHERE ?1 IS NULL OR state = ?1 ORDER BY since, entry_id

-- quarantined_entry --
-- One of them, by the beginning of its id.
SELECT entry_id, device_id, reason, since, state FROM quarantine
WHERE entry_id >= ? AND entry_id < ? ORDER BY entry_id LIMIT 3

-- quarantined_content --
-- What another device's entry was, as far as it came.
SELECT content FROM quarantine WHERE entry_id = ?

-- first_quarantined --
-- The replica's first number among some that came before, and could not be taken then.
SELECT MIN(content ->> '$.cloud_seq') FROM quarantine
WHERE state = 'open' AND json_valid(content)
  AND entry_id IN (SELECT value FROM json_each(?))

-- release --
-- Some of those are here after all.
UPDATE quarantine SET state = 'taken'
WHERE state <> 'dropped' AND content <> '' AND entry_id IN (SELECT value FROM json_each(?))

-- release_holes --
-- Numbers that the replica had left out, and now has not.
UPDATE quarantine SET state = 'taken'
WHERE device_id = '' AND json_extract(content, '$.cloud_seq') BETWEEN ? AND ?

-- settle_quarantine --
-- What became of it.
UPDATE quarantine SET state = ? WHERE entry_id = ?

-- purge_targets --
-- Where the versions stand that a purge names, as far as they belong to its task and still have
-- their body, or name a purge with a greater id: all devices name the one with the least.
SELECT l.seq, l.entry_id, l.body <> x''
FROM json_each(?1) n JOIN log l ON l.entry_id = n.value AND l.entry_id <> l.entity_id
WHERE l.refused IS NULL AND l.entity = 'checkpoint'
  AND iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL) = ?2
  AND (l.purged IS NULL OR l.purged > ?3 OR l.body <> x'')
UNION
SELECT l.seq, l.entry_id, l.body <> x''
FROM json_each(?1) n JOIN checkpoints c ON c.id = n.value JOIN log l ON l.seq = c.first_seq
WHERE l.entry_id = c.id AND l.entity = 'checkpoint'
  AND iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL) = ?2
  AND (l.purged IS NULL OR l.purged > ?3 OR l.body <> x'')
UNION
SELECT l.seq, l.entry_id, l.body <> x''
FROM json_each(?1) n JOIN log l ON l.entry_id = n.value AND l.refused IS NOT NULL
WHERE l.entity = 'checkpoint' AND iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL) = ?2
  AND l.body <> x''

-- purge --
-- Take a body away.
UPDATE log SET body = x'', purged = ? WHERE seq = ?

-- purge_quarantine --
-- What was not taken in goes as well.
UPDATE quarantine SET content = json_remove(content, '$.body')
WHERE entry_id IN (SELECT value FROM json_each(?)) AND json_valid(content)

-- purged_conflicts --
-- The checkpoints whose open conflicts have lost what lost.
SELECT DISTINCT entity_id FROM conflicts
WHERE kind = 'version' AND state = 'open' AND loser IN (SELECT value FROM json_each(?))

-- add_purge --
-- A purge entry that is not in this log, as evidence.
INSERT OR IGNORE INTO purges (entry_id, entry) VALUES (?, ?)

-- purges --
-- All of those.
SELECT entry_id, entry FROM purges

-- purge_evidence --
-- One of those.
SELECT entry FROM purges WHERE entry_id = ?

-- erasures_after --
-- Of the entries after some place in the log, those that erase something.
SELECT entry_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'purge' AND +seq > ?
  AND iif(json_valid(meta), meta ->> '$.kind', '') = 'erase'

-- erased_versions --
-- The versions that some of those name, unless the replica has refused it, and when it was asked for
-- and by whom; optionally those of one checkpoint.
SELECT l.entity_id, l.entry_id, p.at, p.actor FROM json_each(?1) e
CROSS JOIN log p ON p.entry_id = e.value AND p.entry_id <> p.entity_id
CROSS JOIN json_each(iif(json_valid(p.meta), p.meta, '{}'), '$.entries') n
CROSS JOIN log l ON l.entry_id = n.value AND l.entry_id <> l.entity_id
WHERE p.refused IS NULL AND l.refused IS NULL AND l.entity = 'checkpoint'
  AND (?2 IS NULL OR l.entity_id = ?2)
  AND iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL) = p.meta ->> '$.task_id'
UNION ALL
SELECT c.id, l.entry_id, p.at, p.actor FROM json_each(?1) e
CROSS JOIN log p ON p.entry_id = e.value AND p.entry_id <> p.entity_id
CROSS JOIN json_each(iif(json_valid(p.meta), p.meta, '{}'), '$.entries') n
CROSS JOIN checkpoints c ON c.id = n.value
CROSS JOIN log l ON l.seq = c.first_seq
WHERE p.refused IS NULL AND l.entry_id = c.id AND (?2 IS NULL OR c.id = ?2)
  AND iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL) = p.meta ->> '$.task_id'

-- purges_waiting --
-- Purges that the replica has not answered.
SELECT * FROM log
WHERE entity <> 'checkpoint' AND entity = 'purge' AND cloud_seq IS NULL AND refused IS NULL

-- versions_kept --
-- The versions of a task's checkpoints that have a body: where they stand, how large they are,
-- whether the replica has them, and whether each is current.
SELECT l.entry_id, l.entity_id, l.effective_hlc, length(l.body),
  l.cloud_seq IS NOT NULL AND l.refused IS NULL, l.seq = c.seq
FROM checkpoints c JOIN log l ON l.entity_id = c.id AND l.entry_id <> l.entity_id
WHERE c.task_id = ?1 AND l.entity = 'checkpoint' AND l.body <> x''
  AND iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL) = ?1
UNION ALL
SELECT l.entry_id, l.entity_id, l.effective_hlc, length(l.body),
  l.cloud_seq IS NOT NULL AND l.refused IS NULL, l.seq = c.seq
FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.task_id = ?1 AND l.entry_id = c.id AND l.entity = 'checkpoint' AND l.body <> x''
  AND iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL) = ?1

-- bodies_of --
-- The versions of a checkpoint that have a body, with the task of each.
SELECT l.entry_id, iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL), length(l.body)
FROM log l WHERE l.entity_id = ?1 AND l.entry_id <> l.entity_id AND l.entity = 'checkpoint'
  AND l.body <> x''
UNION ALL
SELECT l.entry_id, iif(json_valid(l.meta), l.meta ->> '$.task_id', NULL), length(l.body)
FROM checkpoints c JOIN log l ON l.seq = c.first_seq
WHERE c.id = ?1 AND l.entry_id = c.id AND l.body <> x''

-- limited_tasks --
-- Tasks whose versions are not kept for ever.
SELECT id, retention FROM tasks
WHERE retention LIKE 'days:%' OR retention LIKE 'revisions:%' ORDER BY id

-- disputed --
-- Checkpoints and versions that an open conflict is about.
SELECT entity_id FROM conflicts WHERE state = 'open'
UNION SELECT winner FROM conflicts WHERE state = 'open'
UNION SELECT loser FROM conflicts WHERE state = 'open'

-- conflicts --
-- The conflict log, optionally those in one state.
SELECT id, kind, entity, entity_id, bases, winner, loser, detected_at, state FROM conflicts
WHERE ?1 IS NULL OR state = ?1 ORDER BY detected_at, id

-- conflict_ids --
-- Conflicts whose id begins so.
SELECT id FROM conflicts WHERE id >= ? AND id < ? ORDER BY id LIMIT 3

-- conflict --
-- One conflict.
SELECT id, kind, entity, entity_id, bases, winner, loser, detected_at, state FROM conflicts
WHERE id = ?

-- conflicts_of --
-- The open conflicts about one entity.
SELECT id, kind, entity, entity_id, bases, winner, loser, detected_at, state FROM conflicts
WHERE entity_id = ? AND state = 'open' ORDER BY detected_at, id

-- counts_open --
-- How much waits for a decision.
SELECT (SELECT COUNT(*) FROM conflicts WHERE state = 'open'),
       (SELECT COUNT(*) FROM quarantine WHERE state = 'open')

-- add_attempt --
-- An attempt to reach the replica, and how it ended.
INSERT INTO attempts (at, pushed, pulled, error) VALUES (?, ?, ?, ?)

-- trim_attempts --
-- Only the latest are of interest.
DELETE FROM attempts WHERE id <= (SELECT MAX(id) FROM attempts) - 200

-- attempts_since --
-- The attempts after some time, newest first.
SELECT at, pushed, pulled, error FROM attempts WHERE at >= ? ORDER BY id DESC

-- data_version --
-- Changes when another connection has written.
PRAGMA data_version

-- merge_log --
-- Bring the write-ahead log into the database and cut it; busy, its length, how much was merged.
PRAGMA wal_checkpoint(TRUNCATE)

-- pages --
-- Unused pages, all pages, bytes of a page.
SELECT f.freelist_count, c.page_count, s.page_size
FROM pragma_freelist_count() AS f, pragma_page_count() AS c, pragma_page_size() AS s

-- states --
-- All that this device remembers by name.
SELECT name, value FROM state

-- cursor_here --
-- The cursor, and how much damage was met.
SELECT (SELECT coalesce(MAX(seq), 0) FROM log), (SELECT COUNT(*) FROM problems)

-- counts_here --
-- The same, and how many checkpoints and tasks there are. Looks at all of them.
SELECT (SELECT coalesce(MAX(seq), 0) FROM log), (SELECT COUNT(*) FROM checkpoints),
       (SELECT COUNT(*) FROM tasks), (SELECT COUNT(*) FROM problems)

-- counts_since --
-- How many checkpoints there are of which the log has nothing up to some place, and how many of some
-- tasks the tally does not know.
SELECT (SELECT COUNT(*) FROM checkpoints c
    WHERE c.id IN (SELECT entity_id FROM log WHERE seq > ?1 AND entity = 'checkpoint')
      AND c.first_seq > ?1 AND NOT EXISTS (
        SELECT 1 FROM log v WHERE v.entity = 'checkpoint' AND v.entry_id <> v.entity_id
          AND v.entity_id = c.id AND v.seq <= ?1
          AND (v.refused IS NULL OR v.body <> x'' OR v.purged IS NOT NULL))),
  (SELECT COUNT(*) FROM json_each(?2) j JOIN tasks t ON t.id = j.value
    WHERE NOT EXISTS (SELECT 1 FROM working w WHERE w.task_id = t.id))

-- tasks_since --
-- Tasks that entries after some place in the log are about.
SELECT iif(json_valid(meta), meta ->> '$.task_id', '') FROM log WHERE seq > ?1
UNION
SELECT entity_id FROM log WHERE seq > ?1 AND entity IN ('task', 'lease')
UNION
SELECT c.task_id FROM log l JOIN checkpoints c ON c.id = l.entity_id
WHERE l.seq > ?1 AND l.entity = 'checkpoint'

-- fenced_tasks --
-- Of some tasks, or of all, those that somebody on some devices has lost.
SELECT DISTINCT task_id FROM fences
WHERE device_id IN (SELECT value FROM json_each(?1))
  AND (?2 IS NULL OR task_id IN (SELECT value FROM json_each(?2)))

-- forget_tally --
-- What was written down of the log is true of it only as long as the log just grows.
DELETE FROM state WHERE name IN ('tally', 'erasures')

-- clear_working --
-- Begin the tally anew.
DELETE FROM working

-- know_tasks --
-- Some tasks, or all, with nobody at work.
INSERT OR REPLACE INTO working
SELECT id, '', '', '', 0, 0 FROM tasks
WHERE id IN (SELECT value FROM json_each(coalesce(?1, (SELECT json_group_array(id) FROM tasks))))

-- put_working --
-- Somebody at work on a task.
INSERT OR REPLACE INTO working (device_id, agent_id, task_id, agent_type, hlc, look)
VALUES (?, ?, ?, ?, ?, ?)

-- forget_working --
-- Who has not been heard of since some time is not expected.
UPDATE working SET look = 0 WHERE look = 1 AND hlc < ?

-- worth_a_look --
-- Whoever of the tally may be missed, or is known by more than the tally: whom one must always look
-- at, those who were not heard of since some time, whoever is on some tasks, and all of some agents.
-- Then, marked, of each agent on each device where it was heard of last, if that was since: an agent
-- is as well as there. Of some tasks more is known, and no agent is judged by these. Agents are met
-- backwards, so that the first row of each is its newest. The same row may come twice.
WITH RECURSIVE worker AS (
  SELECT * FROM (SELECT device_id, agent_id, task_id, agent_type, hlc FROM working WHERE look = 1
                 ORDER BY device_id DESC, agent_id DESC, hlc DESC LIMIT 1)
  UNION ALL
  SELECT n.device_id, n.agent_id, n.task_id, n.agent_type, n.hlc
  FROM worker w CROSS JOIN working n ON n.task_id = coalesce(
    (SELECT k.task_id FROM working k
     WHERE k.look = 1 AND k.device_id = w.device_id AND k.agent_id < w.agent_id
     ORDER BY k.agent_id DESC, k.hlc DESC LIMIT 1),
    (SELECT k.task_id FROM working k WHERE k.look = 1 AND k.device_id < w.device_id
     ORDER BY k.device_id DESC, k.agent_id DESC, k.hlc DESC LIMIT 1))),
known (task_id) AS (SELECT value FROM json_each(?2)),
looked_at (task_id) AS (
  SELECT task_id FROM working WHERE look = 2
  UNION ALL
  SELECT k.task_id FROM worker w CROSS JOIN working k
  WHERE k.look = 1 AND k.device_id = w.device_id AND k.agent_id = w.agent_id AND k.hlc < ?1
  UNION ALL
  SELECT value FROM json_each(?3)
  UNION ALL
  SELECT k.task_id FROM json_each(?4) g CROSS JOIN working k
  WHERE k.look IN (0, 1, 2) AND k.device_id = g.value ->> 0 AND k.agent_id = g.value ->> 1)
SELECT k.device_id, k.agent_id, k.task_id, k.agent_type, k.hlc, 0
FROM looked_at a CROSS JOIN working k ON k.task_id = a.task_id WHERE k.device_id <> ''
UNION ALL
SELECT *, 1 FROM worker WHERE hlc >= ?1 AND task_id NOT IN known
UNION ALL
SELECT k.device_id, k.agent_id, k.task_id, k.agent_type, k.hlc, 1
FROM worker w CROSS JOIN working k ON k.task_id = (
  SELECT o.task_id FROM working o
  WHERE o.look = 1 AND o.device_id = w.device_id AND o.agent_id = w.agent_id AND o.hlc >= ?1
    AND o.task_id NOT IN known ORDER BY o.hlc DESC LIMIT 1)
WHERE w.task_id IN known

-- refused_count --
-- Entries of some devices that the replica did not take, and nobody has decided on.
SELECT COUNT(*) FROM quarantine
WHERE state = 'open' AND device_id IN (SELECT value FROM json_each(?))

-- last_attempt --
-- When the replica was asked last, and what was wrong then.
SELECT at, error FROM attempts ORDER BY id DESC LIMIT 1

-- last_pushed --
-- When something was sent last.
SELECT at FROM attempts WHERE pushed > 0 ORDER BY id DESC LIMIT 1

-- last_pulled --
-- When something was received last.
SELECT at FROM attempts WHERE pulled > 0 ORDER BY id DESC LIMIT 1

-- at_work --
-- Who wrote the newest version of the newest checkpoint of each of some tasks, or of all, that is in
-- progress, where, and when; but not who has lost the task since.
SELECT l.device_id, c.agent_id, c.task_id, c.agent_type, l.effective_hlc FROM tasks t
JOIN checkpoints c ON c.id = (
    SELECT k.id FROM checkpoints k WHERE k.task_id = t.id AND NOT EXISTS (
      SELECT 1 FROM fences f WHERE f.task_id = t.id AND f.agent_id = k.agent_id
        AND f.device_id = k.device_id AND k.hlc > f.since AND k.hlc < f.until)
    ORDER BY k.hlc DESC, k.id DESC LIMIT 1)
JOIN log l ON l.seq = c.seq
WHERE t.id IN (SELECT value FROM json_each(coalesce(?1, (SELECT json_group_array(id) FROM tasks))))
  AND c.final = 0 AND c.status = 'in_progress' AND c.phase <> 'handoff'
  AND t.status IN ('', 'in_progress') AND NOT EXISTS (
    SELECT 1 FROM fences f WHERE f.task_id = t.id AND f.agent_id = c.agent_id
      AND f.device_id = l.device_id AND f.until = 9223372036854775807)

-- present --
-- Signs of life, each with the reason why no further one is expected, if there is one: the agent has
-- lost the task, that is done or rests, or the agent's own newest checkpoint says that it waits.
SELECT p.device_id, p.agent_id, p.task_id, p.agent_type, p.session_id, p.seen_ms,
  CASE
    WHEN EXISTS (SELECT 1 FROM fences f WHERE f.task_id = p.task_id AND f.agent_id = p.agent_id
      AND f.device_id = p.device_id AND f.until = 9223372036854775807) THEN 'fenced'
    WHEN t.status NOT IN ('', 'in_progress') THEN t.status
    WHEN t.status = '' AND n.status IN ('complete', 'failed') THEN n.status
    WHEN o.phase = 'handoff' THEN o.phase
    WHEN o.status <> 'in_progress' THEN o.status
    ELSE '' END
FROM presence p
LEFT JOIN tasks t ON t.id = p.task_id
LEFT JOIN checkpoints n ON n.id = (
  SELECT k.id FROM checkpoints k WHERE k.task_id = p.task_id AND NOT EXISTS (
    SELECT 1 FROM fences f WHERE f.task_id = k.task_id AND f.agent_id = k.agent_id
      AND f.device_id = k.device_id AND k.hlc > f.since AND k.hlc < f.until)
  ORDER BY k.hlc DESC, k.id DESC LIMIT 1)
LEFT JOIN checkpoints o ON o.id = (
  SELECT k.id FROM participants q JOIN checkpoints k ON k.task_id = q.task_id
  WHERE q.agent_id = p.agent_id AND q.task_id = p.task_id AND k.agent_id = p.agent_id
    AND k.device_id = p.device_id
  ORDER BY k.hlc DESC, k.id DESC LIMIT 1)

-- sign --
-- An agent's last sign of life on a device.
SELECT device_id, agent_id, task_id, agent_type, session_id, seen_ms FROM presence
WHERE device_id = ? AND agent_id = ? AND task_id = ?

-- sign_keys --
-- Whose last signs of life are known, where and on which task; none if it was for all of them.
SELECT device_id, agent_id, task_id FROM presence

-- signs_of --
-- Those of the agents of some devices.
SELECT device_id, agent_id, task_id, agent_type, session_id, seen_ms FROM presence
WHERE device_id IN (SELECT value FROM json_each(?))

-- put_sign --
-- A newer one.
INSERT OR REPLACE INTO presence VALUES (?, ?, ?, ?, ?, ?)

-- drop_sign --
-- An agent has ended; its task, or all that it has on a device.
DELETE FROM presence WHERE device_id = ?1 AND agent_id = ?2 AND ?3 IN ('', task_id)

-- drop_signs_elsewhere --
-- Before what the replica tells of all other devices takes their place.
DELETE FROM presence WHERE device_id NOT IN (SELECT value FROM json_each(?))

-- drop_old_signs --
-- Nobody waits any more for agents that were last seen so long ago.
DELETE FROM presence WHERE seen_ms < ?

-- crashed_tasks --
-- Tasks of which an agent was ever presumed to have crashed.
SELECT DISTINCT meta ->> '$.task_id' FROM log
WHERE entity <> 'checkpoint' AND entity = 'agent' AND json_valid(meta)
  AND meta ->> '$.state' = 'crashed'

-- own_ids --
-- The ids that this device has had, under the key that it has now and under those before it.
SELECT device_id FROM devices WHERE public_key = (
  SELECT d.public_key FROM devices d JOIN state s ON s.name = 'device_id' AND s.value = d.device_id)
UNION
SELECT d.device_id FROM state s, json_each(s.value) f JOIN devices d ON d.device_id = f.key
WHERE s.name = 'former_ids'

-- signing_ids --
-- Those of them that it can sign for: its key is the same under each.
SELECT device_id FROM devices WHERE public_key = (
  SELECT d.public_key FROM devices d JOIN state s ON s.name = 'device_id' AND s.value = d.device_id)

-- own_key --
-- The key that is pinned for this device.
SELECT d.public_key FROM state s JOIN devices d ON d.device_id = s.value WHERE s.name = 'device_id'

-- unsigned --
-- What nothing but these devices' key can cover for the replica: what it has not acknowledged, and
-- the last entry of each.
SELECT seq, chain FROM log
WHERE signature IS NULL AND device_id IN (SELECT value FROM json_each(?1))
  AND (cloud_seq IS NULL OR seq IN (SELECT MAX(seq) FROM log GROUP BY device_id))

-- unsigned_head --
-- A device's newest entry, if it is not signed.
SELECT seq, chain FROM log
WHERE seq = (SELECT seq FROM log WHERE device_id = ? ORDER BY seq DESC LIMIT 1) AND signature IS NULL

-- put_signature --
-- The signature of an entry that had none.
UPDATE log SET signature = ?1 WHERE seq = ?2 AND chain = ?3 AND signature IS NULL

-- sealed_here --
-- An entry whose body this home has sealed, on this disk or for all who share its key.
SELECT seq FROM log WHERE typeof(body) = 'blob' AND substr(body, 1, 1) = x'01' AND (
  key_id = '' OR device_id = (SELECT value FROM state WHERE name = 'device_id')
  OR device_id IN (SELECT f.key FROM state s, json_each(s.value) f WHERE s.name = 'former_ids'))
LIMIT 1

-- plain_bodies --
-- Bodies that are not sealed, a piece at a time.
SELECT seq, entry_id, body FROM log
WHERE seq > ? AND key_id = '' AND typeof(body) = 'blob' AND body <> x''
  AND substr(body, 1, 1) <> x'01'
ORDER BY seq LIMIT ?

-- sealed_bodies --
-- Bodies that are sealed for this home alone, a piece at a time.
SELECT seq, entry_id, body FROM log
WHERE seq > ? AND key_id = '' AND typeof(body) = 'blob' AND substr(body, 1, 1) = x'01'
ORDER BY seq LIMIT ?

-- put_body --
-- The same body, sealed or plain.
UPDATE log SET body = ? WHERE seq = ?

-- quarantine_texts --
-- What is kept of entries that were not taken.
SELECT entry_id, content FROM quarantine WHERE content <> ''

-- put_quarantine --
-- The same, its body sealed or plain.
UPDATE quarantine SET content = ? WHERE entry_id = ?

-- put_purge --
-- The same evidence, its body sealed or plain.
UPDATE purges SET entry = ? WHERE entry_id = ?

-- bodies_by_key --
-- How many bodies are sealed with each key, by how they begin.
SELECT CASE substr(body, 1, 1) WHEN x'01' THEN substr(body, 1, 9) ELSE x'' END AS head, count(*)
FROM log WHERE typeof(body) = 'blob' AND body <> x'' GROUP BY head

-- plain_for_replica --
-- How many bodies the replica can read, as they are sealed for this home alone: those that it has,
-- and those that are still to be sent.
SELECT count(cloud_seq), count(*) - count(cloud_seq) FROM log
WHERE key_id = '' AND refused IS NULL AND length(body) > 0

-- places_after --
-- Where the next entries of the log stand, whether each is signed, and of one task.
SELECT seq, entry_id, device_id, CAST(device_seq AS INTEGER), signature IS NOT NULL,
  coalesce(iif(json_valid(meta), meta ->> '$.task_id', NULL) = ?1, 0)
FROM log WHERE seq > ?2 ORDER BY seq LIMIT ?3

-- last_success --
-- When the replica was last spoken to without an error.
SELECT at FROM attempts WHERE error = '' ORDER BY id DESC LIMIT 1

-- copies --
-- What is here of some entries, without their content.
SELECT l.entry_id, l.chain, l.cloud_seq, l.batch, l.effective_hlc, l.purged, l.refused
FROM json_each(?1) n JOIN log l ON l.entry_id = n.value AND l.entry_id <> l.entity_id
WHERE l.refused IS NULL
UNION ALL
SELECT l.entry_id, l.chain, l.cloud_seq, l.batch, l.effective_hlc, l.purged, l.refused
FROM json_each(?1) n JOIN checkpoints c ON c.id = n.value JOIN log l ON l.seq = c.first_seq
WHERE l.entry_id = c.id
UNION ALL
SELECT l.entry_id, l.chain, l.cloud_seq, l.batch, l.effective_hlc, l.purged, l.refused
FROM json_each(?1) n JOIN log l ON l.entry_id = n.value AND l.refused IS NOT NULL

-- acknowledged_after --
-- Entries of a device after some number that the replica has said it has.
SELECT entry_id FROM log
WHERE device_id = ? AND device_seq > ? AND cloud_seq IS NOT NULL ORDER BY device_seq LIMIT ?

-- device_ids --
-- Devices whose id begins so.
SELECT device_id FROM devices WHERE device_id >= ? AND device_id < ? ORDER BY device_id LIMIT 3

-- source --
-- What is known of a file.
SELECT path, origin, digest, line, problem, at FROM sources WHERE path = ?

-- sources_with --
-- Files that held the same when they were read last.
SELECT path, origin, digest, line, problem, at FROM sources WHERE digest = ? ORDER BY path

-- sources_below --
-- Files of a directory.
SELECT path, origin, digest, line, problem, at FROM sources WHERE path >= ? AND path < ?

-- put_source --
-- What a file held when it was read.
INSERT OR REPLACE INTO sources VALUES (?, ?, ?, ?, ?, ?)

-- drop_source --
-- A file that is gone; what was read from it stays.
DELETE FROM sources WHERE path = ?

-- source_problems --
-- Files that could not be read.
SELECT path, line, problem, at FROM sources WHERE problem <> '' ORDER BY path

-- graph_keys --
-- Names of a graph's states in a range, the last first.
SELECT DISTINCT entity_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'graph' AND entity_id > ?1 AND entity_id < ?2
ORDER BY entity_id DESC LIMIT ?3

-- graph_named --
-- The name of a state by its id: plain, or after that of another.
SELECT entity_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'graph' AND entity_id = ?1
UNION ALL
SELECT entity_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'graph' AND entity_id > ?2 AND entity_id < ?3
  AND substr(entity_id, -length(?4)) = ?4
LIMIT 1

-- graph_newest --
-- The last state in a range of names that was not deleted since, as the newest put has it, and
-- whether steps wrote something beside it, as far as its name tells.
SELECT l.*, EXISTS (
    SELECT 1 FROM log w WHERE w.entity <> 'checkpoint' AND w.entity = 'graph_write'
      AND w.entity_id = l.entity_id)
FROM log l
WHERE l.entity <> 'checkpoint' AND l.entity = 'graph' AND l.entity_id >= ?1 AND l.entity_id <= ?2
  AND (l.refused IS NULL OR l.body <> x'') AND l.purged IS NULL AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = ?3 AND d.effective_hlc > l.effective_hlc)
  AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = l.entity_id AND d.effective_hlc > l.effective_hlc)
  AND NOT EXISTS (
    SELECT 1 FROM log o WHERE o.entity <> 'checkpoint' AND o.entity = 'graph'
      AND o.entity_id = l.entity_id AND o.seq <> l.seq AND (o.refused IS NULL OR o.body <> x'')
      AND (o.effective_hlc, o.entry_id) > (l.effective_hlc, l.entry_id))
ORDER BY l.entity_id DESC LIMIT 1

-- graph_writes --
-- What steps wrote beside a state, as far as it was not deleted since.
SELECT l.* FROM log l
WHERE l.entity <> 'checkpoint' AND l.entity = 'graph_write' AND l.entity_id = ?1
  AND (l.refused IS NULL OR l.body <> x'') AND l.purged IS NULL AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = ?2 AND d.effective_hlc > l.effective_hlc)
  AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = l.entity_id AND d.effective_hlc > l.effective_hlc)

-- graph_written --
-- Names of states in a range that steps wrote something beside.
SELECT DISTINCT entity_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'graph_write' AND entity_id > ?1 AND entity_id < ?2
LIMIT ?3

-- graph_pieces --
-- The pieces of a large value in their order; one may be there several times.
SELECT l.* FROM log l
WHERE l.entity <> 'checkpoint' AND l.entity = 'graph_blob' AND l.entity_id > ?1
  AND l.entity_id < ?2 AND l.body <> x''
ORDER BY l.entity_id, l.seq

-- graph_piece_count --
-- How many of them are here.
SELECT COUNT(DISTINCT entity_id) FROM log
WHERE entity <> 'checkpoint' AND entity = 'graph_blob' AND entity_id > ?1 AND entity_id < ?2
  AND body <> x'' AND refused IS NULL

-- graph_runs --
-- Names of the states that some runs put. Looks through all states.
SELECT DISTINCT entity_id FROM log
WHERE entity <> 'checkpoint' AND entity = 'graph' AND json_valid(meta)
  AND meta ->> '$.run' IN (SELECT value FROM json_each(?))

-- graph_count --
-- How many states of a thread are shown, and when the last one was put.
SELECT COUNT(DISTINCT l.entity_id), coalesce(MAX(l.at), '') FROM log l
WHERE l.entity <> 'checkpoint' AND l.entity = 'graph' AND l.entity_id > ?1 AND l.entity_id < ?2
  AND (l.refused IS NULL OR l.body <> x'') AND l.purged IS NULL AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = ?3 AND d.effective_hlc > l.effective_hlc)
  AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = l.entity_id AND d.effective_hlc > l.effective_hlc)

-- graph_counts --
-- The same of all threads, by the names that they have here. Looks through all states.
SELECT substr(l.entity_id, 1, instr(l.entity_id, '/') - 1), COUNT(DISTINCT l.entity_id), MAX(l.at)
FROM log l WHERE l.entity <> 'checkpoint' AND l.entity = 'graph'
  AND (l.refused IS NULL OR l.body <> x'') AND l.purged IS NULL AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = substr(l.entity_id, 1, instr(l.entity_id, '/') - 1)
      AND d.effective_hlc > l.effective_hlc)
  AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = l.entity_id AND d.effective_hlc > l.effective_hlc)
GROUP BY 1

-- graph_last --
-- When the last state of the graph itself was put, of a thread that is shown.
SELECT g.at FROM log g WHERE g.seq = (
  SELECT l.seq FROM log l WHERE l.entity <> 'checkpoint' AND l.entity = 'graph'
    AND l.entity_id > ?1 || '//' AND l.entity_id < ?1 || '/0'
  ORDER BY l.entity_id DESC LIMIT 1) AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = ?1 AND d.effective_hlc > g.effective_hlc)

-- chain_page --
-- A task's checkpoints without their entries, newest first, some of them passed over: in the index,
-- so that the end of a long chain is as near as its beginning.
SELECT c.id, coalesce((SELECT k.parent_id FROM links k WHERE k.child_id = c.id
    ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1), c.parent_id),
  c.agent_id, c.agent_type, c.phase, c.status, c.tokens, c.final, c.device_id, c.created_at
FROM checkpoints c WHERE c.id IN (
  SELECT id FROM checkpoints WHERE task_id = ? ORDER BY hlc DESC, id DESC LIMIT ? OFFSET ?)
ORDER BY c.hlc DESC, c.id DESC

-- history_page --
-- The same with their entries.
SELECT c.*, l.*,
  (SELECT k.parent_id FROM links k WHERE k.child_id = c.id
   ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1)
FROM checkpoints c LEFT JOIN log l ON l.seq = c.seq WHERE c.id IN (
  SELECT id FROM checkpoints WHERE task_id = ? ORDER BY hlc DESC, id DESC LIMIT ? OFFSET ?)
ORDER BY c.hlc DESC, c.id DESC

-- checkpoint_header --
-- One checkpoint without its entry, whatever became of that.
SELECT c.id, coalesce((SELECT k.parent_id FROM links k WHERE k.child_id = c.id
    ORDER BY k.hlc DESC, k.parent_id DESC LIMIT 1), c.parent_id),
  c.agent_id, c.agent_type, c.phase, c.status, c.tokens, c.final, c.device_id, c.created_at,
  c.task_id
FROM checkpoints c WHERE c.id = ?

-- tasks_by_activity --
-- All tasks with their newest checkpoint, the one that was worked on last first. Of a graph's thread
-- also when the last state of the graph itself was put, which is the greatest by its name.
SELECT t.id, t.status, t.budget, t.revision, t.created_at, coalesce(c.id, ''),
  coalesce(c.agent_id, ''), coalesce(c.phase, ''), coalesce(c.status, ''),
  coalesce(nullif(max(coalesce(c.created_at, ''), coalesce(g.at, '')), ''), t.created_at),
  coalesce(g.at, '')
FROM (SELECT *, replace(replace(replace(id, '%', '%25'), '/', '%2F'), '~', '%7E') AS thread
      FROM tasks) t
LEFT JOIN checkpoints c ON c.id = (
  SELECT k.id FROM checkpoints k WHERE k.task_id = t.id AND NOT EXISTS (
    SELECT 1 FROM fences f WHERE f.task_id = t.id AND f.agent_id = k.agent_id
      AND f.device_id = k.device_id AND k.hlc > f.since AND k.hlc < f.until)
  ORDER BY k.hlc DESC, k.id DESC LIMIT 1)
LEFT JOIN log g ON g.seq = (
  SELECT l.seq FROM log l WHERE l.entity <> 'checkpoint' AND l.entity = 'graph'
    AND l.entity_id > t.thread || '//' AND l.entity_id < t.thread || '/0'
  ORDER BY l.entity_id DESC LIMIT 1) AND NOT EXISTS (
    SELECT 1 FROM log d WHERE d.entity <> 'checkpoint' AND d.entity = 'graph_delete'
      AND d.entity_id = t.thread AND d.effective_hlc > g.effective_hlc)
ORDER BY 10 DESC, t.id

-- forked_tasks --
-- Tasks of which branches wait for a decision.
SELECT c.task_id, COUNT(*) FROM conflicts k JOIN checkpoints c ON c.id = k.entity_id
WHERE k.state = 'open' AND k.kind = 'fork' GROUP BY c.task_id

-- conflicts_page --
-- The conflict log, newest first, optionally those in one state, some of them passed over.
SELECT id, kind, entity, entity_id, bases, winner, loser, detected_at, state FROM conflicts
WHERE ?1 IS NULL OR state = ?1 ORDER BY detected_at DESC, id LIMIT ?2 OFFSET ?3

-- conflict_counts --
-- How many there are in each state.
SELECT state, COUNT(*) FROM conflicts GROUP BY state

-- cost_by_task --
-- What was spent, by task and day. Looks through all checkpoints, in the order they lie on the disk
-- and not in that of the index, which has them everywhere.
SELECT task_id, substr(created_at, 1, 10), COUNT(*), SUM(tokens) FROM checkpoints
GROUP BY +task_id, 2

-- cost_by_agent --
-- The same by agent and day.
SELECT agent_id, substr(created_at, 1, 10), COUNT(*), SUM(tokens) FROM checkpoints GROUP BY 1, 2

-- checkpoint_count --
-- How many a task has.
SELECT COUNT(*) FROM checkpoints WHERE task_id = ?

-- recent_entries --
-- The newest entries, none older than some place in the log.
SELECT seq, entry_id, device_id, device_seq, entity, entity_id, op, actor, at, meta, hash,
       signature IS NOT NULL
FROM log WHERE seq > ?1 AND (?2 = '' OR entity = ?2)
  AND (?3 = '' OR iif(json_valid(meta), meta ->> '$.task_id', NULL) = ?3)
  AND (?4 = '' OR actor = ?4) ORDER BY seq DESC LIMIT ?5 OFFSET ?6

-- recent_attempts --
-- The latest attempts to reach the replica, newest first.
SELECT at, pushed, pulled, error FROM attempts ORDER BY id DESC LIMIT ?

-- signed_devices --
-- The devices known here and since when.
SELECT device_id, public_key, added_at FROM devices ORDER BY added_at, device_id
