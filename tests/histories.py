"""Long histories for tests, made inside the server: what so many entries of so many tasks would
have left in the tables. Nothing is signed or chained; figures and plans are the same."""

from __future__ import annotations

from replicas import Cloud

DEVICES = 20
AGENTS = 50
# Of a hundred entries: hand-offs, claims to them, messages; the rest are checkpoints.
KINDS = """
  CASE n % 100 WHEN 1 THEN 'handoff' WHEN 21 THEN 'lease' WHEN 3 THEN 'message'
               ELSE 'checkpoint' END
"""
# Each device works on one task after the other, with three agents in turn; all together write an
# entry each twenty seconds, the last one now.
FROM = "(floor(extract(epoch FROM now()) * 1000)::bigint - ({count} - n) * 20000)"
ENTRY = f"""
  SELECT n, {KINDS} AS entity, md5('{{organization}} entry ' || n)::uuid AS entry_id,
    md5('{{organization}} device ' || n % {DEVICES})::uuid AS device_id,
    'task-' || t.task AS task_id, 'agent-' || (t.task * 3 + n / 2000 % 3) % {AGENTS} AS agent,
    {FROM} << 16 AS hlc
  FROM generate_series({{first}}::bigint, {{last}}) AS n
  CROSS JOIN LATERAL (SELECT (n / {DEVICES} / greatest({{count}} / {{tasks}}, 1) * {DEVICES}
                              + n % {DEVICES}) % {{tasks}} AS task) t
"""
META = """
  jsonb_build_object('task_id', e.task_id, 'agent', e.agent, 'agent_type', 'implementation',
    'iteration', e.n % 9 + 1, 'phase', 'implementing', 'status', 'in_progress', 'reason', '',
    'tokens', 100, 'parent', '', 'task_seq', e.n)
"""
BODY = """
  jsonb_build_object('metadata', jsonb_build_object('task_id', e.task_id, 'agent_id', e.agent),
    'metrics', jsonb_build_object('duration_seconds', 2),
    'execution_state', jsonb_build_object('phase', 'implementing', 'blocked_items', '[]'::jsonb,
      'current_focus', repeat(md5(e.n::text) || ' ', 24)))
"""
STATEMENTS = (
    f"""
    INSERT INTO syncd.log
    SELECT '{{organization}}', e.n, md5('batch' || e.n / 500)::uuid, e.entry_id, e.device_id,
      e.n / {DEVICES} + (e.n % {DEVICES} <> 0)::int, e.entity,
      CASE e.entity WHEN 'checkpoint' THEN e.entry_id::text WHEN 'lease' THEN e.task_id
           ELSE md5('about ' || e.n)::uuid::text END,
      'create', '[]', e.hlc, 'tester', to_timestamp(e.hlc / 65536000.0)::text, '',
      (CASE e.entity
       WHEN 'handoff' THEN jsonb_build_object('task_id', e.task_id, 'checkpoint', e.entry_id,
         'trigger', 'explicit_request', 'target', '', 'priority', 5, 'giver', e.agent,
         'giver_device', e.device_id, 'task_seq', e.n)
       WHEN 'lease' THEN jsonb_build_object('task_id', e.task_id, 'holder', 'other',
         'subject', md5('about ' || e.n - 20)::uuid, 'giver', 'former',
         'giver_device', e.device_id, 'task_seq', e.n)
       WHEN 'message' THEN jsonb_build_object('task_id', e.task_id, 'sender', e.agent,
         'recipient', 'other', 'task_seq', e.n)
       ELSE {META} END)::text, md5(e.n::text), sha256(e.entry_id::text::bytea),
      CASE WHEN e.n % 500 < {DEVICES} OR e.n > {{last}} - {DEVICES} THEN '\\x00'::bytea END, e.hlc,
      to_timestamp(e.hlc / 65536000.0), CASE WHEN e.n % 10007 = 5 THEN 'too large' END,
      CASE WHEN e.n % 10007 <> 5 THEN convert_to({BODY}::text, 'UTF8') END
    FROM ({ENTRY}) e
    """,
    f"""
    INSERT INTO syncd.checkpoints
    SELECT '{{organization}}', e.entry_id::text, e.task_id, e.agent, 'implementation',
      e.n % 9 + 1, 'implementing', CASE WHEN e.n % 13 = 0 THEN 'blocked' ELSE 'in_progress' END,
      '', 100, '', false, md5(e.n::text), e.entry_id, e.n, e.device_id, e.hlc,
      to_timestamp(e.hlc / 65536000.0), {BODY}
    FROM ({ENTRY}) e WHERE e.entity = 'checkpoint' AND e.n % 10007 <> 5
    """,
    f"""
    INSERT INTO syncd.conflicts
    SELECT '{{organization}}', md5('conflict' || e.n)::uuid, CASE WHEN e.n % 2 = 0 THEN 'fork'
        ELSE 'version' END, 'checkpoint', e.entry_id::text, '[]', e.entry_id, e.entry_id, 'then',
      CASE WHEN e.n % 5 = 0 THEN 'open' ELSE 'merged' END
    FROM ({ENTRY}) e WHERE e.n % 199 = 0 AND e.entity = 'checkpoint'
    """,
)
# What depends on all of it.
TOTALS = (
    """
    INSERT INTO syncd.tasks (organization_id, id, created_at)
    SELECT '{organization}', 'task-' || n, now() FROM generate_series(0, {tasks} - 1) AS n
    """,
    f"""
    INSERT INTO syncd.logins SELECT '{{organization}}', 'login ' || n,
      md5('{{organization}}')::uuid, 'machine ' || n, now()
    FROM generate_series(0, {DEVICES} - 1) AS n
    """,
    """
    INSERT INTO syncd.members
    SELECT '{organization}', md5('{organization}')::uuid, 'generated', 'member', now()
    """,
    f"""
    INSERT INTO syncd.devices (organization_id, device_id, login, public_key, device_seq, chain,
                               first_seen, last_seen, pulled, pending, version, skew_ms)
    SELECT '{{organization}}', md5('{{organization}} device ' || n)::uuid, 'login ' || n, '\\x00',
      h.device_seq, h.chain, now(), now(), {{count}} - n, 0, '1.0', n
    FROM generate_series(0, {DEVICES} - 1) AS n
    CROSS JOIN LATERAL (
      SELECT l.device_seq, l.chain FROM syncd.log l
      WHERE l.organization_id = '{{organization}}'
        AND l.device_id = md5('{{organization}} device ' || n)::uuid
      ORDER BY l.device_seq DESC LIMIT 1) h
    """,
    f"""
    INSERT INTO syncd.agents
    SELECT '{{organization}}', md5('{{organization}} device ' || n % {DEVICES})::uuid,
      'agent-' || n, 'task-' || n, 'implementation', '', now() - n * interval '1 minute'
    FROM generate_series(0, 999) AS n
    """,
    """
    INSERT INTO syncd.costs
    SELECT c.organization_id, c.task_id, syncd.day_of(c.hlc),
      syncd.worker(c.agent_id, c.agent_type), c.agent_id, c.agent_type, count(*),
      max(c.iteration), sum(c.tokens), coalesce(sum(syncd.seconds(c.checkpoint_data)), 0),
      min(c.hlc), max(c.hlc)
    FROM syncd.checkpoints c WHERE c.organization_id = '{organization}'
    GROUP BY c.organization_id, c.task_id, syncd.day_of(c.hlc), c.agent_id, c.agent_type
    """,
    """
    INSERT INTO syncd.growth
    SELECT '{organization}', (l.received_at AT TIME ZONE 'UTC')::date, count(*),
      sum(octet_length(l.body))
    FROM syncd.log l WHERE l.organization_id = '{organization}' GROUP BY 2
    """,
    "UPDATE syncd.organizations SET cloud_seq = {count} WHERE organization_id = '{organization}'",
)
# Many others, with little in each.
CROWD = (
    """
    INSERT INTO syncd.organizations (organization_id, name, created_at, channel, announced_at,
                                     cloud_seq)
    SELECT md5('crowd ' || o)::uuid, 'crowd ' || o, now(), '', now(), 50
    FROM generate_series(1, {organizations}) AS o
    """,
    """
    INSERT INTO syncd.log
    SELECT md5('crowd ' || o)::uuid, n, md5('')::uuid, md5(o || ' ' || n)::uuid,
      md5('device')::uuid, n, 'checkpoint', md5(o || ' ' || n)::uuid::text, 'create', '[]', n,
      'tester', '', '', '{{}}', '', '\\x00', NULL, n, now(), NULL, '{{}}'
    FROM generate_series(1, {organizations}) AS o, generate_series(1, 50) AS n
    """,
    """
    INSERT INTO syncd.checkpoints
    SELECT l.organization_id, l.entity_id, 'task', 'agent', '', 1, '', '', '', 0, '', false, '',
      l.entry_id, l.cloud_seq, l.device_id, l.hlc, now(), '{{}}'
    FROM syncd.log l WHERE l.device_id = md5('device')::uuid
    """,
)
_AT_ONCE = 100_000


def generate(cloud: Cloud, organization: str, count: int, tasks: int) -> None:
    """So many entries of an organization that has none."""
    for first in range(1, count + 1, _AT_ONCE):
        last = min(first + _AT_ONCE - 1, count)
        _run(cloud, STATEMENTS, organization, count, tasks, first, last)
    _run(cloud, TOTALS, organization, count, tasks, 1, count)


def _run(
    cloud: Cloud, statements: tuple[str, ...], organization: str, count: int, tasks: int,
    first: int, last: int,
) -> None:  # fmt: skip
    for statement in statements:
        cloud.sql(statement.format(organization=organization, count=count, tasks=tasks,
                                   first=first, last=last))  # fmt: skip


def crowd(cloud: Cloud, organizations: int) -> None:
    for statement in CROWD:
        cloud.sql(statement.format(organizations=organizations))
