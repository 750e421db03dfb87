-- One part of a long history, written by the server itself: of each organization the same number of
-- entries, by fifty devices, in batches of twenty-five, fifty entries to a task. Ids grow with time, as
-- those of real entries do; chain values are of the right size and prove nothing.
-- Parameters: the organizations, the first and the last entry.
WITH numbered AS MATERIALIZED (
  SELECT n, (%(organizations)s::uuid[])[1 + n %% cardinality(%(organizations)s::uuid[])] AS org,
    1 + n / cardinality(%(organizations)s::uuid[]) AS seq
  FROM generate_series(%(first)s::bigint, %(last)s::bigint) AS n
), named AS MATERIALIZED (
  SELECT n, org, seq, (lpad(to_hex(1700000000000 + n), 12, '0') || '70008'
      || lpad(to_hex(n), 15, '0'))::uuid AS id,
    (lpad(to_hex(1700000000000 + n - cardinality(%(organizations)s::uuid[])), 12, '0') || '70008'
      || lpad(to_hex(n - cardinality(%(organizations)s::uuid[])), 15, '0'))::uuid AS previous,
    'task-' || left(md5(org::text || (seq - 1) / 50), 10) AS task,
    (1700000000000 + n) << 16 AS hlc, md5(n::text) AS noise
  FROM numbered
), described AS MATERIALIZED (
  SELECT *, CASE WHEN seq %% 50 = 1 THEN '' ELSE previous::text END AS parent,
    format('{"context_summary":{"assumptions":["%%s of %%s"]},"execution_state":{"completed_items":'
      '["Add ledger%%s"],"pending_items":["Test refund%%s"],"phase":"testing","status":"in_progress"},'
      '"metadata":{"agent_id":"agent-7","checkpoint_id":"%%s","task_id":"%%s"},"metrics":'
      '{"tokens_consumed":%%s},"version":"1.0"}', left(noise, 12), right(noise, 12), n %% 1000,
      n %% 997, id, task, n %% 200000) AS body
  FROM named
), views AS (
  INSERT INTO syncd.checkpoints
  SELECT org, id, task, 'agent-7', 'implementation', 1, 'testing', 'in_progress', '', n %% 200000,
    parent, false, encode(sha256(body::bytea), 'hex'), id, seq,
    md5(org::text || (seq - 1) / 25 %% 50)::uuid, hlc, to_timestamp((1700000000000 + n) / 1000.0),
    body::jsonb
  FROM described
), tasks AS (
  INSERT INTO syncd.tasks (organization_id, id, created_at)
  SELECT org, task, to_timestamp((1700000000000 + n) / 1000.0) FROM described WHERE seq %% 50 = 1
)
INSERT INTO syncd.log
SELECT org, seq, md5(org::text || (seq - 1) / 25)::uuid, id, md5(org::text || (seq - 1) / 25 %% 50)::uuid,
  (seq - 1) / 1250 * 25 + (seq - 1) %% 25 + 1, 'checkpoint', id, 'create', '[]', hlc, 'agent-7',
  '2023-11-14T22:13:20.000+00:00', '', json_build_object('agent', 'agent-7', 'agent_type',
    'implementation', 'iteration', 1, 'parent', parent, 'phase', 'testing', 'reason', '', 'status',
    'in_progress', 'task_id', task, 'task_seq', (seq - 1) %% 50 + 1, 'tokens', n %% 200000)::text,
  encode(sha256(body::bytea), 'hex'), sha256(noise::bytea), NULL, hlc, now(), NULL, body::bytea, NULL
FROM described
