-- The admin queries. Each block makes the view `syncd.admin_<name>`, in which everybody sees what
-- row-level security lets them see, and the command `syncd admin <name>`: a name, lines that say
-- what for (they are the command's help and the view's comment), and the statement. In between may
-- stand what the command makes of the columns: `shown` are those for people, of which the last ones
-- are left out where there is no room for all; `filters` become options; `order` sorts, a minus for
-- the greatest first; `since` is what --since and --until compare; `COLUMN is` are all words that
-- stand in a column, so that a word that never stands there is refused.
--
-- What is looked up for each row is looked up in a LATERAL with a LIMIT: the columns have no
-- statistics, and a plain join over millions of rows may be planned in any way.

-- fleet --
-- The machines: version, when last seen, how far behind, clock skew, backlog, whether revoked.
-- shown: machine, member, state, version, last_seen, behind, pending, skew_ms
-- filters: machine, member, device_id, version, state
-- state is: current, behind, sending, silent, lost, unused, revoked
-- order: -last_seen, machine
-- since: last_seen
SELECT o.organization_id, o.name AS organization, m.name AS member, l.name AS machine, d.device_id,
  CASE WHEN l.revoked_at IS NOT NULL THEN 'revoked'
       WHEN d.device_id IS NULL THEN 'unused'
       WHEN l.login IS NULL THEN 'lost'
       WHEN d.last_seen < syncd.clock() - interval '1 day' THEN 'silent'
       WHEN d.pending > 0 THEN 'sending'
       WHEN b.behind > 0 THEN 'behind'
       ELSE 'current' END AS state,
  d.version, d.first_seen, d.last_seen, b.behind, d.pending, d.skew_ms,
  d.device_seq AS entries, l.revoked_at, l.reason AS revoked_because
FROM syncd.devices d
FULL JOIN syncd.logins l ON l.organization_id = d.organization_id AND l.login = d.login
JOIN syncd.organizations o ON o.organization_id = coalesce(d.organization_id, l.organization_id)
LEFT JOIN syncd.members m
  ON m.organization_id = l.organization_id AND m.member_id = l.member_id
LEFT JOIN LATERAL (
  -- A device has its own entries; among very many it does not matter.
  SELECT CASE WHEN d.pulled < o.cloud_seq - 10000 THEN o.cloud_seq - d.pulled ELSE (
      SELECT count(*) FROM syncd.log g
      WHERE g.organization_id = d.organization_id AND g.cloud_seq > d.pulled
        AND g.cloud_seq <= o.cloud_seq AND g.device_id <> d.device_id) END AS behind
  WHERE d.device_id IS NOT NULL) b ON true

-- tasks --
-- The tasks: state, current checkpoint, forks and conflicts that are open, what it waits for.
-- shown: task_id, state, waits_for, forks, agent_id, checkpoints, tokens, last_at
-- filters: task_id, state, agent_id, agent_type, phase
-- state is: in_progress, waiting, blocked, escalated, complete, failed
-- phase is: planning, implementing, testing, reviewing, handoff, complete
-- order: -last_at, task_id
-- since: last_at
WITH undecided AS MATERIALIZED (
  -- As one value: the planner has no statistics, and would count them for each task anew.
  SELECT jsonb_object_agg(y.name, jsonb_build_array(y.forks, y.conflicts)) AS counts
  FROM (
    SELECT x.organization_id || ' ' || coalesce(c.task_id, x.entity_id) AS name,
      count(*) FILTER (WHERE x.kind = 'fork') AS forks,
      count(*) FILTER (WHERE x.kind <> 'fork') AS conflicts
    FROM syncd.conflicts x
    LEFT JOIN LATERAL (
      SELECT k.task_id FROM syncd.checkpoints k
      WHERE k.organization_id = x.organization_id AND k.id = x.entity_id
        AND x.entity = 'checkpoint' LIMIT 1) c ON true
    WHERE x.state = 'open' GROUP BY 1) y
)
SELECT o.organization_id, o.name AS organization, t.id AS task_id, t.title,
  coalesce(nullif(t.status, ''), h.status, 'in_progress') AS state, h.id AS head, h.phase,
  h.agent_id, h.agent_type, h.device_id,
  coalesce(((SELECT u.counts FROM undecided u) -> (t.organization_id || ' ' || t.id) ->> 0)
    ::bigint, 0) AS forks,
  coalesce(((SELECT u.counts FROM undecided u) -> (t.organization_id || ' ' || t.id) ->> 1)
    ::bigint, 0) AS conflicts,
  CASE WHEN coalesce(nullif(t.status, ''), h.status) IN ('blocked', 'escalated', 'waiting', 'failed')
    THEN coalesce(nullif(t.waits_for, ''), b.blocked_items,
                  h.content #>> '{execution_state,error}', '') ELSE '' END AS waits_for,
  coalesce(k.checkpoints, 0) AS checkpoints, coalesce(k.tokens, 0) AS tokens, t.budget, t.retention,
  greatest(t.created_at, 'epoch') AS created_at,
  CASE WHEN h.id IS NOT NULL THEN greatest(h.created_at, 'epoch') END AS last_at
FROM syncd.tasks t
JOIN syncd.organizations o ON o.organization_id = t.organization_id
LEFT JOIN LATERAL (
  -- What somebody wrote who had lost the task is a branch.
  SELECT c.id, c.status, c.phase, c.agent_id, c.agent_type, c.device_id, c.created_at,
    c.checkpoint_data AS content
  FROM syncd.checkpoints c
  WHERE c.organization_id = t.organization_id AND c.task_id = t.id AND NOT EXISTS (
    SELECT FROM syncd.log g
    WHERE g.organization_id = t.organization_id AND g.entity = 'lease' AND g.entity_id = t.id
      AND g.entity_id <> g.entry_id::text AND g.refused IS NULL AND g.op = 'create'
      AND g.effective_hlc < c.hlc AND g.meta::jsonb ->> 'giver' = c.agent_id
      AND g.meta::jsonb ->> 'giver_device' = c.device_id::text
      AND NOT (g.meta::jsonb ->> 'holder' = c.agent_id AND g.device_id = c.device_id))
  ORDER BY c.hlc DESC, c.id DESC LIMIT 1) h ON true
LEFT JOIN LATERAL (
  SELECT sum(c.checkpoints)::bigint AS checkpoints,
    least(coalesce(sum(c.tokens), 0), 9000000000000000000)::bigint AS tokens
  FROM syncd.costs c WHERE c.organization_id = t.organization_id AND c.task_id = t.id) k ON true
LEFT JOIN LATERAL (
  SELECT string_agg(coalesce(i ->> 'description', i ->> 'text', i ->> 'step', i #>> '{}'), '; ')
    AS blocked_items
  FROM jsonb_array_elements(
    CASE jsonb_typeof(h.content #> '{execution_state,blocked_items}')
      WHEN 'array' THEN h.content #> '{execution_state,blocked_items}' ELSE '[]' END) AS i) b ON true

-- cost --
-- What the work has cost: tokens, time, checkpoints and the highest iteration, per task, agent,
-- type of agent and day.
-- shown: task_id, agent_id, agent_type, day, tokens, seconds, checkpoints, iterations
-- filters: task_id, agent_id, agent_type, day
-- order: -tokens, task_id
-- since: last_at
SELECT o.organization_id, o.name AS organization, k.task_id, k.agent_id, k.agent_type, k.day,
  least(k.tokens, 9000000000000000000)::bigint AS tokens, k.seconds, k.checkpoints, k.iterations,
  to_timestamp((greatest(k.first_hlc, 0) >> 16) / 1000.0) AS first_at,
  to_timestamp((greatest(k.last_hlc, 0) >> 16) / 1000.0) AS last_at
FROM syncd.costs k JOIN syncd.organizations o ON o.organization_id = k.organization_id
WHERE k.checkpoints > 0

-- segments --
-- What each stretch of a task's work has cost, from one agent's taking over to the next one's. Ask
-- for one task: all of its checkpoints are read.
-- shown: task_id, segment, agent_id, agent_type, tokens, seconds, checkpoints, first_at, last_at
-- filters: task_id, agent_id, agent_type
-- order: task_id, segment
-- since: last_at
SELECT s.organization_id,
  (SELECT o.name FROM syncd.organizations o WHERE o.organization_id = s.organization_id)
    AS organization,
  s.task_id,
  row_number() OVER (PARTITION BY s.organization_id, s.task_id ORDER BY min(s.hlc), min(s.id))
    AS segment,
  s.agent_id, s.agent_type, s.device_id,
  least(sum(s.tokens), 9000000000000000000)::bigint AS tokens, sum(s.seconds) AS seconds,
  count(*) AS checkpoints, max(s.iteration) AS iterations,
  greatest(min(s.created_at), 'epoch') AS first_at, greatest(max(s.created_at), 'epoch') AS last_at
FROM (
  SELECT c.organization_id, c.task_id, c.agent_id, c.agent_type, c.device_id, c.id, c.hlc,
    c.created_at, c.iteration, c.tokens,
    CASE jsonb_typeof(c.checkpoint_data #> '{metrics,duration_seconds}') WHEN 'number'
      THEN least((c.checkpoint_data #>> '{metrics,duration_seconds}')::numeric, 1000000000) ELSE 0
      END::double precision AS seconds,
    row_number() OVER (PARTITION BY c.organization_id, c.task_id ORDER BY c.hlc, c.id)
      - row_number() OVER (PARTITION BY c.organization_id, c.task_id, c.agent_id, c.device_id
                           ORDER BY c.hlc, c.id) AS island
  FROM syncd.checkpoints c) s
GROUP BY s.organization_id, s.task_id, s.agent_id, s.agent_type, s.device_id, s.island

-- stale --
-- The agents that have given no sign of life for 30 minutes (warning) or 60 (stale), by the
-- server's clock.
-- shown: agent_id, task_id, state, silent_minutes, machine, member, seen_at
-- filters: agent_id, task_id, agent_type, machine, member, state
-- state is: warning, stale
-- order: seen_at
-- since: seen_at
SELECT o.organization_id, o.name AS organization, a.agent_id, a.task_id, a.agent_type, a.session_id,
  a.device_id, w.machine, w.member, a.seen_at,
  floor(extract(epoch FROM syncd.clock() - a.seen_at) / 60)::bigint AS silent_minutes,
  CASE WHEN a.seen_at < syncd.clock() - interval '60 minutes' THEN 'stale' ELSE 'warning' END
    AS state
FROM syncd.agents a
JOIN syncd.organizations o ON o.organization_id = a.organization_id
LEFT JOIN LATERAL (
  SELECT l.name AS machine, m.name AS member FROM syncd.devices d
  JOIN syncd.logins l ON l.organization_id = d.organization_id AND l.login = d.login
  JOIN syncd.members m ON m.organization_id = l.organization_id AND m.member_id = l.member_id
  WHERE d.organization_id = a.organization_id AND d.device_id = a.device_id LIMIT 1) w ON true
WHERE a.seen_at < syncd.clock() - interval '30 minutes'

-- conflicts --
-- The versions and branches that lost: against which, from which machine, whether decided.
-- shown: task_id, kind, state, entity_id, loser_machine, winner_machine, received_at
-- filters: task_id, kind, state, entity_id
-- kind is: version, fork
-- state is: open, restored, dismissed, merged, identical, chosen_against, purged
-- order: -received_at, conflict_id
-- since: received_at
SELECT o.organization_id, o.name AS organization, x.id AS conflict_id, x.kind, x.state, x.entity,
  x.entity_id, coalesce(c.task_id, x.entity_id) AS task_id, x.winner, x.loser,
  lm.name AS loser_machine, wm.name AS winner_machine, le.received_at, x.detected_at
FROM syncd.conflicts x
JOIN syncd.organizations o ON o.organization_id = x.organization_id
LEFT JOIN LATERAL (
  SELECT k.task_id FROM syncd.checkpoints k
  WHERE k.organization_id = x.organization_id AND k.id = x.entity_id
    AND x.entity IN ('checkpoint', 'choice') LIMIT 1) c ON true
LEFT JOIN LATERAL (
  SELECT g.device_id, g.received_at FROM syncd.log g
  WHERE g.organization_id = x.organization_id AND g.entry_id = x.loser AND g.refused IS NULL
  LIMIT 1) le ON true
LEFT JOIN LATERAL (
  SELECT l.name FROM syncd.devices d
  JOIN syncd.logins l ON l.organization_id = d.organization_id AND l.login = d.login
  WHERE d.organization_id = x.organization_id AND d.device_id = le.device_id LIMIT 1) lm ON true
LEFT JOIN LATERAL (
  SELECT g.device_id, g.received_at FROM syncd.log g
  WHERE g.organization_id = x.organization_id AND g.entry_id = x.winner AND g.refused IS NULL
  LIMIT 1) we ON true
LEFT JOIN LATERAL (
  SELECT l.name FROM syncd.devices d
  JOIN syncd.logins l ON l.organization_id = d.organization_id AND l.login = d.login
  WHERE d.organization_id = x.organization_id AND d.device_id = we.device_id LIMIT 1) wm ON true

-- audit --
-- The chain of each device: whether the log has all of it, up to where it is signed, what was
-- refused. `syncd audit verify --cloud` checks every link.
-- shown: machine, member, state, entries, held, unsigned, refused, received_at
-- filters: machine, member, device_id, state
-- state is: whole, unsigned end, incomplete, empty
-- order: state, machine, device_id
-- since: received_at
SELECT o.organization_id, o.name AS organization, m.name AS member, l.name AS machine, d.device_id,
  CASE WHEN d.device_seq = 0 THEN 'empty'
       WHEN coalesce(c.held, 0) <> d.device_seq OR h.chain IS DISTINCT FROM d.chain
         THEN 'incomplete'
       WHEN coalesce(s.device_seq, 0) < d.device_seq THEN 'unsigned end'
       ELSE 'whole' END AS state,
  d.device_seq AS entries, coalesce(c.held, 0) AS held,
  d.device_seq - coalesce(s.device_seq, 0) AS unsigned, coalesce(r.refused, 0) AS refused,
  h.received_at, encode(d.chain, 'hex') AS chain,
  encode(sha256(d.public_key), 'hex') AS key_fingerprint
FROM syncd.devices d
JOIN syncd.organizations o ON o.organization_id = d.organization_id
LEFT JOIN syncd.logins l ON l.organization_id = d.organization_id AND l.login = d.login
LEFT JOIN syncd.members m ON m.organization_id = l.organization_id AND m.member_id = l.member_id
LEFT JOIN LATERAL (
  SELECT count(*) AS held FROM syncd.log g
  WHERE g.organization_id = d.organization_id AND g.device_id = d.device_id
    AND g.device_seq BETWEEN 1 AND d.device_seq) c ON true
LEFT JOIN LATERAL (
  SELECT g.chain, g.received_at FROM syncd.log g
  WHERE g.organization_id = d.organization_id AND g.device_id = d.device_id
    AND g.device_seq = d.device_seq LIMIT 1) h ON true
LEFT JOIN LATERAL (
  SELECT g.device_seq FROM syncd.log g
  WHERE g.organization_id = d.organization_id AND g.device_id = d.device_id
    AND g.signature IS NOT NULL
  ORDER BY g.device_seq DESC LIMIT 1) s ON true
LEFT JOIN LATERAL (
  SELECT count(*) AS refused FROM syncd.log g
  WHERE g.organization_id = d.organization_id AND g.device_id = d.device_id
    AND g.refused IS NOT NULL) r ON true

-- growth --
-- How much there is in each table, and how much there will be at the pace of the last 30 days. The
-- bytes are on disk, indexes included: the table's, shared out by rows.
-- shown: relation, rows, bytes, rows_per_day, rows_in_30_days, bytes_in_30_days, bytes_in_365_days
-- filters: relation
-- relation is: log, checkpoints, tasks, conflicts, messages, costs
-- order: -bytes, relation
SELECT n.organization_id,
  (SELECT o.name FROM syncd.organizations o WHERE o.organization_id = n.organization_id)
    AS organization,
  n.relation, n.rows,
  round(n.rows * n.row_bytes)::bigint AS bytes,
  round(n.rows_per_day::numeric, 1)::double precision AS rows_per_day,
  round(n.rows_per_day * n.row_bytes)::bigint AS bytes_per_day,
  round(n.rows + n.rows_per_day * 30)::bigint AS rows_in_30_days,
  round((n.rows + n.rows_per_day * 30) * n.row_bytes)::bigint AS bytes_in_30_days,
  round((n.rows + n.rows_per_day * 365) * n.row_bytes)::bigint AS bytes_in_365_days
FROM (
  SELECT r.organization_id, r.relation, r.rows,
    coalesce(pg_total_relation_size(p.oid) / greatest(p.reltuples, r.rows, 1), 0) AS row_bytes,
    -- Of those that only take part in the log's growth, each has the share it has of its rows.
    coalesce(g.entries_per_day, 0) * r.rows / greatest(g.entries, 1) AS rows_per_day
  FROM (
    SELECT x.organization_id, 'log' AS relation, x.cloud_seq AS rows FROM syncd.organizations x
    UNION ALL SELECT x.organization_id, 'checkpoints', sum(x.checkpoints)::bigint
      FROM syncd.costs x GROUP BY 1
    UNION ALL SELECT x.organization_id, 'tasks', count(*) FROM syncd.tasks x GROUP BY 1
    UNION ALL SELECT x.organization_id, 'conflicts', count(*) FROM syncd.conflicts x GROUP BY 1
    UNION ALL SELECT x.organization_id, 'messages', count(*) FROM syncd.messages x GROUP BY 1
    UNION ALL SELECT x.organization_id, 'costs', count(*) FROM syncd.costs x GROUP BY 1
  ) r
  JOIN pg_catalog.pg_class p ON p.relname = r.relation
    AND p.relnamespace = (SELECT s.oid FROM pg_catalog.pg_namespace s WHERE s.nspname = 'syncd')
  JOIN (
    SELECT x.organization_id, x.cloud_seq AS entries,
      (SELECT sum(y.entries) / least(30, c.today - (
          SELECT min(z.day) FROM syncd.growth z WHERE z.organization_id = x.organization_id) + 1)
       FROM syncd.growth y
       WHERE y.organization_id = x.organization_id AND y.day > c.today - 30)::float8
      AS entries_per_day
    FROM syncd.organizations x
    CROSS JOIN (SELECT (syncd.clock() AT TIME ZONE 'UTC')::date AS today) c) g ON g.organization_id = r.organization_id) n

-- days --
-- How many entries and bytes came in on each day, and how many bytes were purged.
-- shown: day, entries, bytes, purged_bytes
-- filters: day
-- order: -day
-- since: day
SELECT o.organization_id, o.name AS organization, g.day, g.entries, g.bytes,
  g.purged AS purged_bytes
FROM syncd.growth g JOIN syncd.organizations o ON o.organization_id = g.organization_id

-- handoffs --
-- The hand-offs: who offered what, who took it, how long that took.
-- shown: handoff_id, task_id, state, trigger, from_agent, holder, waited_seconds, requested_at
-- filters: task_id, state, trigger, from_agent, holder
-- state is: open, accepted, acknowledged, superseded
-- trigger is: context_threshold, phase_complete, error_threshold, explicit_request, token_budget, timeout
-- order: -requested_at, handoff_id
-- since: requested_at
WITH facts AS (
  SELECT l.organization_id, l.entity, l.op, l.device_id, l.cloud_seq, l.effective_hlc AS hlc,
    l.received_at, l.meta::jsonb AS meta, l.meta::jsonb ->> 'task_id' AS task_id,
    CASE l.entity WHEN 'lease' THEN l.meta::jsonb ->> 'subject' ELSE l.entity_id END AS subject,
    -- Of several claims to the same, the first one holds that was not let go of.
    l.entity = 'lease' AND l.op = 'create' AND NOT bool_or(l.op = 'release') OVER (
      PARTITION BY l.organization_id, l.entity,
        CASE l.op WHEN 'release' THEN l.bases::jsonb ->> 0 ELSE l.entry_id::text END) AS claims
  FROM syncd.log l
  WHERE l.entity = ANY (ARRAY['handoff', 'lease']) AND l.entity_id <> l.entry_id::text
    AND l.refused IS NULL
), weighed AS (
  SELECT f.*, f.entity = 'handoff' AND f.op = 'create' AS offers,
    f.claims AND f.cloud_seq = min(f.cloud_seq) FILTER (WHERE f.claims) OVER (
      PARTITION BY f.organization_id, f.task_id, f.subject) AS holds
  FROM facts f
), offers AS (
  SELECT w.organization_id, w.task_id, w.subject,
    (array_agg(w.meta) FILTER (WHERE w.offers))[1] AS meta,
    min(w.hlc) FILTER (WHERE w.offers) AS hlc,
    min(w.received_at) FILTER (WHERE w.offers) AS requested_at,
    min(w.meta ->> 'holder') FILTER (WHERE w.holds) AS holder,
    (array_agg(w.device_id) FILTER (WHERE w.holds))[1] AS holder_device,
    min(w.cloud_seq) FILTER (WHERE w.holds) AS fence,
    min(w.received_at) FILTER (WHERE w.holds) AS accepted_at,
    min(w.received_at) FILTER (WHERE w.op = 'acknowledge') AS acknowledged_at,
    max(max(w.hlc) FILTER (WHERE w.offers OR w.holds)) OVER (
      PARTITION BY w.organization_id, w.task_id) AS newest
  FROM weighed w GROUP BY w.organization_id, w.task_id, w.subject
)
SELECT f.organization_id,
  (SELECT o.name FROM syncd.organizations o WHERE o.organization_id = f.organization_id)
    AS organization,
  f.subject AS handoff_id, f.task_id,
  CASE WHEN f.fence IS NOT NULL AND f.acknowledged_at IS NOT NULL THEN 'acknowledged'
       WHEN f.fence IS NOT NULL THEN 'accepted'
       WHEN f.newest > f.hlc THEN 'superseded'
       ELSE 'open' END AS state,
  f.meta ->> 'trigger' AS trigger, f.meta -> 'priority' AS priority,
  f.meta ->> 'giver' AS from_agent, f.meta ->> 'target' AS target_agent_type,
  f.meta ->> 'checkpoint' AS checkpoint_id, f.holder, f.holder_device, f.fence, f.requested_at,
  f.accepted_at, f.acknowledged_at,
  round(extract(epoch FROM coalesce(f.accepted_at, syncd.clock()) - f.requested_at), 1)
    ::double precision AS waited_seconds
FROM offers f WHERE f.meta IS NOT NULL
