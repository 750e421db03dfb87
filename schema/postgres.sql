-- The replica, as it is today. migrations/postgres/ leads here step by step. Needs the roles of
-- postgres_roles.sql, and is run by a role that is a member of syncd_owner and syncd_admin.
--
-- Who may see what hangs on the login alone: an organization is a group role, a machine is a login
-- granted that group, and no policy or function looks at anything a client can set.

CREATE SCHEMA syncd AUTHORIZATION syncd_owner;

SET LOCAL ROLE syncd_owner;

GRANT USAGE ON SCHEMA syncd TO syncd_auditor, syncd_admin;
GRANT CREATE ON SCHEMA syncd TO syncd_admin;
ALTER DEFAULT PRIVILEGES FOR ROLE syncd_owner REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

CREATE TABLE syncd.schema_migrations (
  version    integer     PRIMARY KEY,
  name       text        NOT NULL,
  applied_at timestamptz NOT NULL DEFAULT now()
);
GRANT SELECT ON syncd.schema_migrations TO syncd_auditor, syncd_admin;

-- Read instead of now(), so that tests can move time.
CREATE FUNCTION syncd.clock() RETURNS timestamptz
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS 'SELECT clock_timestamp()';

-- The organization of whoever logged in: a login belongs to one. Always called in a sub-select,
-- else it runs per row. As text, the name is no reason to go through all organizations' roles; with
-- OFFSET 0 the login's own groups are looked up one by one, whatever is known of all others.
CREATE FUNCTION syncd.my_org() RETURNS uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE count(DISTINCT g.rolname) WHEN 1 THEN substr(min(g.rolname), 11)::uuid END
  FROM (SELECT m.roleid FROM pg_auth_members m
        WHERE m.member = (SELECT oid FROM pg_roles WHERE rolname = session_user) OFFSET 0) m
  CROSS JOIN LATERAL (SELECT r.rolname FROM pg_roles r WHERE r.oid = m.roleid OFFSET 0) g
  WHERE g.rolname::text ~ '^syncd_org_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
$$;
GRANT EXECUTE ON FUNCTION syncd.my_org() TO syncd_auditor, syncd_admin;
GRANT EXECUTE ON FUNCTION syncd.clock() TO syncd_admin, syncd_auditor;

-- --- tables -----------------------------------------------------------------------------------

-- `cloud_seq` is the last number given out: its row lock makes the order of numbers the order of
-- commits. `channel` is where news is announced, with nothing in it.
CREATE TABLE syncd.organizations (
  organization_id uuid        PRIMARY KEY,
  name            text        NOT NULL CHECK (name <> ''),
  created_at      timestamptz NOT NULL,
  cloud_seq       bigint      NOT NULL DEFAULT 0,
  channel         text        NOT NULL,
  announced_at    timestamptz NOT NULL,
  recovery_open   boolean     NOT NULL DEFAULT false,
  body_limit      integer     NOT NULL DEFAULT 4000000
);

-- People.
CREATE TABLE syncd.members (
  organization_id uuid        NOT NULL,
  member_id       uuid        NOT NULL,
  name            text        NOT NULL CHECK (name <> ''),
  kind            text        NOT NULL CHECK (kind IN ('member', 'lead', 'auditor')),
  added_at        timestamptz NOT NULL,
  removed_at      timestamptz,
  PRIMARY KEY (organization_id, member_id)
);
CREATE UNIQUE INDEX members_by_name ON syncd.members (organization_id, name)
  WHERE removed_at IS NULL;

-- Their machines, each with a login of its own.
CREATE TABLE syncd.logins (
  organization_id uuid        NOT NULL,
  login           text        NOT NULL,
  member_id       uuid        NOT NULL,
  name            text        NOT NULL CHECK (name <> '' AND octet_length(name) <= 1024),
  added_at        timestamptz NOT NULL,
  revoked_at      timestamptz,
  reason          text,
  PRIMARY KEY (organization_id, login)
);
CREATE UNIQUE INDEX logins_by_name ON syncd.logins (organization_id, member_id, name)
  WHERE revoked_at IS NULL;

-- Devices as the log knows them: a machine has one, and another for each time it was cloned.
CREATE TABLE syncd.devices (
  organization_id uuid        NOT NULL,
  device_id       uuid        NOT NULL,
  login           text        NOT NULL,
  public_key      bytea       NOT NULL,
  device_seq      bigint      NOT NULL DEFAULT 0,
  chain           bytea       NOT NULL,
  first_seen      timestamptz NOT NULL,
  last_seen       timestamptz NOT NULL,
  pulled          bigint      NOT NULL DEFAULT 0,
  pending         bigint      NOT NULL DEFAULT 0,
  version         text        NOT NULL DEFAULT '',
  skew_ms         bigint,
  PRIMARY KEY (organization_id, device_id)
);

-- The log, as the devices wrote it. A refused entry keeps its header and says why; one whose body
-- was taken away names the entry that did.
CREATE TABLE syncd.log (
  organization_id uuid        NOT NULL,
  cloud_seq       bigint      NOT NULL,
  batch           uuid        NOT NULL,
  entry_id        uuid        NOT NULL,
  device_id       uuid        NOT NULL,
  device_seq      bigint      NOT NULL,
  entity          text        NOT NULL,
  entity_id       text        NOT NULL,
  op              text        NOT NULL,
  bases           text        NOT NULL,
  hlc             bigint      NOT NULL,
  actor           text        NOT NULL,
  at              text        NOT NULL,
  key_id          text        NOT NULL,
  meta            text        NOT NULL,
  hash            text        NOT NULL,
  chain           bytea       NOT NULL,
  signature       bytea,
  effective_hlc   bigint      NOT NULL,
  received_at     timestamptz NOT NULL,
  refused         text,
  body            bytea,
  purged_by       uuid,
  PRIMARY KEY (organization_id, cloud_seq)
) WITH (toast_tuple_target = 8160);
CREATE UNIQUE INDEX log_by_device ON syncd.log (organization_id, device_id, device_seq);
CREATE UNIQUE INDEX log_by_entry ON syncd.log (organization_id, entry_id) WHERE refused IS NULL;
-- A generated checkpoint's first entry carries the checkpoint's id: log_by_entry finds that one.
CREATE INDEX log_by_entity ON syncd.log (organization_id, entity, entity_id)
  WHERE entity_id <> entry_id::text AND refused IS NULL;
CREATE INDEX log_refused ON syncd.log (organization_id, device_id) WHERE refused IS NOT NULL;

-- What purges name and the log does not have: after a restore, a purge may come back before the
-- entry of another device that it names. Empty as a rule.
CREATE TABLE syncd.awaited (
  organization_id uuid        NOT NULL,
  entry_id        uuid        NOT NULL,
  purge_id        uuid        NOT NULL,
  task_id         text        NOT NULL,
  PRIMARY KEY (organization_id, entry_id, purge_id)
);

CREATE TABLE syncd.tasks (
  organization_id uuid        NOT NULL,
  id              text        NOT NULL,
  title           text        NOT NULL DEFAULT '',
  status          text        NOT NULL DEFAULT '',
  budget          bigint,
  retention       text        NOT NULL DEFAULT 'default',
  entry_id        uuid,
  created_at      timestamptz NOT NULL,
  waits_for       text        NOT NULL DEFAULT '',
  PRIMARY KEY (organization_id, id)
);

CREATE TABLE syncd.checkpoints (
  organization_id uuid        NOT NULL,
  id              text        NOT NULL,
  task_id         text        NOT NULL,
  agent_id        text        NOT NULL,
  agent_type      text        NOT NULL,
  iteration       bigint      NOT NULL,
  phase           text        NOT NULL,
  status          text        NOT NULL,
  reason          text        NOT NULL,
  tokens          bigint      NOT NULL,
  parent_id       text        NOT NULL,
  final           boolean     NOT NULL,
  hash            text        NOT NULL,
  entry_id        uuid        NOT NULL,
  cloud_seq       bigint      NOT NULL,
  device_id       uuid        NOT NULL,
  hlc             bigint      NOT NULL,
  created_at      timestamptz NOT NULL,
  checkpoint_data jsonb,
  PRIMARY KEY (organization_id, id)
) WITH (toast_tuple_target = 8160);
CREATE INDEX checkpoints_by_task ON syncd.checkpoints (organization_id, task_id, hlc DESC);
CREATE INDEX checkpoints_by_agent ON syncd.checkpoints (organization_id, agent_id, hlc DESC);
CREATE INDEX checkpoints_by_time ON syncd.checkpoints (organization_id, hlc DESC);
CREATE INDEX checkpoints_by_parent ON syncd.checkpoints (organization_id, parent_id);
CREATE INDEX checkpoints_by_content ON syncd.checkpoints
  USING gin (checkpoint_data jsonb_path_ops);

CREATE TABLE syncd.conflicts (
  organization_id uuid NOT NULL,
  id              uuid NOT NULL,
  kind            text NOT NULL,
  entity          text NOT NULL,
  entity_id       text NOT NULL,
  bases           text NOT NULL,
  winner          uuid NOT NULL,
  loser           uuid NOT NULL,
  detected_at     text NOT NULL,
  state           text NOT NULL,
  PRIMARY KEY (organization_id, id)
);
CREATE INDEX conflicts_by_entity ON syncd.conflicts (organization_id, entity, entity_id);
CREATE INDEX conflicts_open ON syncd.conflicts (organization_id, entity, entity_id)
  WHERE state = 'open';

-- When agents gave their last sign of life, by this server's clock: state, not history.
CREATE TABLE syncd.agents (
  organization_id uuid        NOT NULL,
  device_id       uuid        NOT NULL,
  agent_id        text        NOT NULL,
  task_id         text        NOT NULL,
  agent_type      text        NOT NULL,
  session_id      text        NOT NULL,
  seen_at         timestamptz NOT NULL,
  PRIMARY KEY (organization_id, device_id, agent_id, task_id)
);

-- What agents were told. `content` is NULL if it is sealed.
CREATE TABLE syncd.messages (
  organization_id uuid        NOT NULL,
  id              text        NOT NULL,
  task_id         text        NOT NULL,
  sender          text        NOT NULL,
  recipient       text        NOT NULL,
  content         jsonb,
  created_at      timestamptz NOT NULL,
  acknowledged_at timestamptz,
  entry_id        uuid        NOT NULL,
  PRIMARY KEY (organization_id, id)
);
CREATE INDEX messages_by_recipient ON syncd.messages (organization_id, recipient, created_at DESC);

-- What the current checkpoints of a task, an agent and a day add up to, kept by push: whoever asks
-- what the work has cost need not read them all. `worker` stands for the two texts, which are too
-- long for an index; `iterations` is the highest number that was given.
CREATE TABLE syncd.costs (
  organization_id uuid             NOT NULL,
  task_id         text             NOT NULL,
  day             date             NOT NULL,
  worker          uuid             NOT NULL,
  agent_id        text             NOT NULL,
  agent_type      text             NOT NULL,
  checkpoints     bigint           NOT NULL,
  iterations      bigint           NOT NULL,
  tokens          numeric          NOT NULL,
  seconds         double precision NOT NULL,
  first_hlc       bigint           NOT NULL,
  last_hlc        bigint           NOT NULL,
  PRIMARY KEY (organization_id, task_id, day, worker)
);

-- How much came in on a day, and how much of what there was has been purged.
CREATE TABLE syncd.growth (
  organization_id uuid   NOT NULL,
  day             date   NOT NULL,
  entries         bigint NOT NULL,
  bytes           bigint NOT NULL,
  purged          bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (organization_id, day)
);

-- These few rows change with every push, and none of their columns is sampled. To count them again
-- each minute would bring nothing, and have every session plan again what names them.
DO $$
DECLARE
  relation text;
BEGIN
  FOREACH relation IN ARRAY ARRAY['organizations', 'devices', 'growth'] LOOP
    EXECUTE format('ALTER TABLE syncd.%I SET (autovacuum_analyze_threshold = 1000000000,
                    autovacuum_vacuum_threshold = 10000)', relation);
  END LOOP;
END $$;

-- --- who may see what -------------------------------------------------------------------------

-- What a member asks with EXPLAIN must not tell of others either:
-- * PostgreSQL evaluates cheap conditions first, the member's own among them, and tells how often.
--   An ANY over one element is cheaper than any comparison, so that the policy comes first.
-- * Estimates come from samples of all rows: no column is sampled but the organization's, in large
--   tables. What it tells, how much there is of each organization, pg_auth_members tells too.
-- The policy for members names no role: whoever has a role can drop what was made for it.
DO $$
DECLARE
  relation text;
  sampled text;
BEGIN
  FOREACH relation IN ARRAY ARRAY['organizations', 'members', 'logins', 'devices', 'log', 'awaited',
                                  'tasks', 'checkpoints', 'conflicts', 'agents', 'messages',
                                  'costs', 'growth'] LOOP
    EXECUTE format('ALTER TABLE syncd.%I ENABLE ROW LEVEL SECURITY', relation);
    EXECUTE format('ALTER TABLE syncd.%I FORCE ROW LEVEL SECURITY', relation);
    EXECUTE format('CREATE POLICY own ON syncd.%I FOR SELECT
                    USING (organization_id = ANY (ARRAY[(SELECT syncd.my_org())]))', relation);
    EXECUTE format('CREATE POLICY functions ON syncd.%I TO syncd_owner USING (true)', relation);
    EXECUTE format('CREATE POLICY administration ON syncd.%I TO syncd_admin USING (true)',
                   relation);
    EXECUTE format('GRANT SELECT ON syncd.%I TO syncd_auditor, syncd_admin', relation);
    FOR sampled IN SELECT attname FROM pg_attribute
        WHERE attrelid = format('syncd.%I', relation)::regclass AND attnum > 0
          AND (relation, attname) <> ('checkpoints', 'organization_id') LOOP
      EXECUTE format('ALTER TABLE syncd.%I ALTER %I SET STATISTICS 0', relation, sampled);
    END LOOP;
  END LOOP;
  -- A member's query compares the organization twice, in the policy and in the join, which the
  -- planner takes for independent: it would think that so little is left that any index will do.
  FOREACH relation IN ARRAY ARRAY['log', 'tasks', 'conflicts', 'messages', 'costs',
                                  'checkpoints'] LOOP
    EXECUTE format('ALTER TABLE syncd.%I ALTER organization_id SET (n_distinct = 20)', relation);
    IF relation <> 'checkpoints' THEN
      EXECUTE format('ALTER TABLE syncd.%I ALTER organization_id SET STATISTICS 1', relation);
    END IF;
  END LOOP;
END $$;
GRANT INSERT, UPDATE ON syncd.organizations, syncd.members, syncd.logins TO syncd_admin;

-- On Citus, for `admin distribute`: the rule for members without the sub-select, which Citus refuses.
CREATE FUNCTION syncd.policy_for_citus(relation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('ALTER POLICY own ON syncd.%I
                  USING (organization_id = ANY (ARRAY[syncd.my_org()]))', relation);
END $$;

-- --- checks -----------------------------------------------------------------------------------

-- Refuses whoever is no member, and whoever may only read where he would write. Says the same for
-- an organization that does not exist as for another's.
-- With the collation of its column, the login is found in the index: a name has another one.
CREATE FUNCTION syncd.require(organization uuid, writing boolean) RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  mine record;
BEGIN
  SELECT l.revoked_at, l.reason, m.kind, m.removed_at INTO mine
  FROM syncd.logins l JOIN syncd.members m USING (organization_id, member_id)
  WHERE l.organization_id = organization AND l.login = session_user::text COLLATE "default"
    AND organization = syncd.my_org();
  IF NOT FOUND THEN
    RAISE EXCEPTION 'this login does not belong to that organization' USING ERRCODE = 'SY001';
  END IF;
  IF mine.revoked_at IS NOT NULL OR mine.removed_at IS NOT NULL THEN
    RAISE EXCEPTION 'this login was revoked: %', coalesce(mine.reason, 'no reason was given')
      USING ERRCODE = 'SY005';
  END IF;
  IF writing AND mine.kind = 'auditor' THEN
    RAISE EXCEPTION 'an auditor may only read' USING ERRCODE = 'SY006';
  END IF;
END $$;

-- Refuses a device that another login used first, unless an administrator has opened recovery.
CREATE FUNCTION syncd.require_device(organization uuid, device uuid, relaying boolean)
RETURNS void
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  owner text := (SELECT login FROM syncd.devices
                 WHERE organization_id = organization AND device_id = device);
BEGIN
  IF owner = session_user OR (relaying AND owner IS NOT NULL
      AND (SELECT recovery_open FROM syncd.organizations WHERE organization_id = organization))
  THEN
    RETURN;
  END IF;
  RAISE EXCEPTION 'this device id is not this login''s' USING ERRCODE = 'SY002';
END $$;

-- --- pure functions ---------------------------------------------------------------------------

-- The header as it was chained: a JSON array of texts. STABLE as its parts are, else it would not
-- be inlined.
CREATE FUNCTION syncd.header(entry_id uuid, device_id uuid, device_seq bigint, entity text,
  entity_id text, op text, bases text, hlc bigint, actor text, at text, key_id text, meta text)
RETURNS bytea
LANGUAGE sql STABLE AS $$
  SELECT pg_catalog.convert_to(pg_catalog.concat(
    '["', entry_id, '","', device_id, '","', device_seq, '",', pg_catalog.to_json(entity), ',',
    pg_catalog.to_json(entity_id), ',', pg_catalog.to_json(op), ',', pg_catalog.to_json(bases),
    ',"', hlc, '",', pg_catalog.to_json(actor), ',', pg_catalog.to_json(at), ',',
    pg_catalog.to_json(key_id), ',', pg_catalog.to_json(meta), ']'), 'UTF8')
$$;

-- A body for queries. JSONB cannot hold U+0000: it is shown as the replacement character here,
-- while the body itself stays as written. NULL if the body is sealed.
CREATE FUNCTION syncd.derived(body bytea, key_id text) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN key_id <> '' THEN NULL
    WHEN pg_catalog.position(body, '\x5c7530303030'::pg_catalog.bytea) = 0
      THEN pg_catalog.convert_from(body, 'UTF8')::pg_catalog.jsonb
    ELSE pg_catalog.regexp_replace(pg_catalog.convert_from(body, 'UTF8'),
      '(?<!\\)((?:\\\\)*)\\u0000', '\1\\ufffd', 'g')::pg_catalog.jsonb
  END
$$;

-- The entries that a purge names. Fails if they are no ids.
CREATE FUNCTION syncd.named(meta jsonb) RETURNS uuid[]
LANGUAGE sql IMMUTABLE AS $$
  SELECT ARRAY(SELECT n::uuid FROM pg_catalog.jsonb_array_elements_text(meta -> 'entries') AS n)
$$;

-- What keeps an entry out of the views, or NULL. Asked of every entry, because each may become the
-- current one when another arrives; by then nobody could refuse it. Ids go into indexes, which
-- hold less than 2,700 bytes.
CREATE FUNCTION syncd.flaw(entity text, id text, op text, bases text, meta jsonb, taken boolean)
RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN pg_catalog.jsonb_typeof(meta -> 'task_id') IS DISTINCT FROM 'string' THEN
      'its meta names no task'
    WHEN greatest(pg_catalog.octet_length(id), pg_catalog.octet_length(meta ->> 'task_id'),
                  pg_catalog.octet_length(meta ->> 'agent')) > 2048
        OR greatest(pg_catalog.octet_length(entity), pg_catalog.octet_length(op)) > 100 THEN
      'one of its ids is too long'
    -- What the views have taken already is complete: their columns are NOT NULL.
    WHEN entity = 'checkpoint' AND NOT taken AND (
        ROW(meta ->> 'agent', meta ->> 'agent_type', meta ->> 'phase', meta ->> 'status',
            meta ->> 'reason', meta ->> 'parent', (meta ->> 'iteration')::bigint,
            (meta ->> 'tokens')::bigint) IS NOT NULL) IS NOT TRUE THEN
      'its meta is incomplete'
    WHEN bases <> '[]' AND pg_catalog.jsonb_array_length(bases::jsonb) > 1000 THEN
      'it names more than 1000 bases'
    WHEN entity = 'purge' AND (pg_catalog.cardinality(syncd.named(meta)) BETWEEN 1 AND 1000
        AND pg_catalog.array_position(syncd.named(meta), NULL) IS NULL
        AND pg_catalog.jsonb_typeof(meta -> 'kind') = 'string') IS NOT TRUE THEN
      'its meta is incomplete'
    WHEN entity = 'message' AND (pg_catalog.octet_length(meta ->> 'sender') <= 2048
        AND pg_catalog.octet_length(meta ->> 'recipient') <= 2048) IS NOT TRUE THEN
      'its meta is incomplete'
    -- Fails if it is no number.
    WHEN entity = 'task' AND (meta ->> 'budget')::bigint IS NULL THEN NULL
  END
$$;

-- A parent that no checkpoint can have as its id is none.
CREATE FUNCTION syncd.parent(meta jsonb) RETURNS text
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN pg_catalog.octet_length(meta ->> 'parent') > 2048 THEN ''
              ELSE meta ->> 'parent' END
$$;

CREATE FUNCTION syncd.at_hlc(hlc bigint) RETURNS timestamptz
LANGUAGE sql IMMUTABLE AS $$
  SELECT pg_catalog.to_timestamp((hlc >> 16) / 1000.0)
$$;

-- The day, in UTC. A clock that stands before 1970 is as wrong as one that stands there.
CREATE FUNCTION syncd.day_of(hlc bigint) RETURNS date
LANGUAGE sql IMMUTABLE AS $$
  SELECT pg_catalog.date '1970-01-01' + ((greatest(hlc, 0) >> 16) / 86400000)::integer
$$;

-- How long the work took, as a checkpoint says; NULL if it cannot be read. No text or number that
-- somebody puts there makes this fail.
CREATE FUNCTION syncd.seconds(content jsonb) RETURNS double precision
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE pg_catalog.jsonb_typeof(content #> '{metrics,duration_seconds}')
    WHEN 'number' THEN least(greatest((content #>> '{metrics,duration_seconds}')::numeric, 0),
                             1000000000)::double precision
    ELSE CASE WHEN content IS NOT NULL THEN 0 END END
$$;

CREATE FUNCTION syncd.worker(agent text, agent_type text) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
  SELECT pg_catalog.md5(pg_catalog.octet_length(agent) || ' ' || agent || agent_type)::uuid
$$;

-- The id of the conflict that a version, or a branch, lost.
CREATE FUNCTION syncd.conflict_id(kind text, loser uuid) RETURNS uuid
LANGUAGE sql IMMUTABLE AS $$
  SELECT pg_catalog.concat(substr(h, 1, 12), '8', substr(h, 14, 3), '8', substr(h, 18, 15))::uuid
  FROM (SELECT pg_catalog.encode(pg_catalog.sha256(pg_catalog.convert_to(
          'syncd conflict ' || kind || ' ' || loser::text, 'UTF8')), 'hex') AS h) AS hashed
$$;

-- --- which version is current -----------------------------------------------------------------

-- All versions of some entities. The first entry of a generated checkpoint is found by its id.
-- OFFSET 0 has them looked up one by one: without statistics the planner would rather read an
-- organization's whole log. A range in the order of the index is found in no other one, even while
-- the log is empty and all are the same to the planner.
CREATE FUNCTION syncd.versions(organization uuid, entities text[], ids text[])
RETURNS SETOF syncd.log
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET enable_sort = off SET jit = off SET work_mem = '64MB' AS $$
  SELECT l.* FROM unnest(entities, ids) AS t(entity, id) CROSS JOIN LATERAL (
    SELECT * FROM syncd.log l WHERE l.organization_id = organization AND l.entity = t.entity
      AND l.entity_id = t.id AND l.entity_id <> l.entry_id::text AND l.refused IS NULL OFFSET 0) l
  UNION ALL
  SELECT l.* FROM (
    SELECT u.entity, u.id, CASE WHEN u.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                                THEN u.id::uuid END AS entry_id
    FROM unnest(entities, ids) AS u(entity, id) OFFSET 0) t
  CROSS JOIN LATERAL (
    SELECT * FROM syncd.log l WHERE l.organization_id = organization AND l.refused IS NULL
      AND l.entry_id BETWEEN t.entry_id AND t.entry_id AND l.entity = t.entity
      AND l.entity_id = t.id ORDER BY l.entry_id OFFSET 0) l
$$;

-- Versions with their rank among the heads of their entity: 1 is the current version, NULL is no
-- head. The same rule as `heads` and `winner` of the Python side.
CREATE FUNCTION syncd.ranked(organization uuid, entities text[], ids text[])
RETURNS TABLE (entity text, entity_id text, entry_id uuid, bases text[], final boolean,
               effective_hlc bigint, device_id uuid, hash text, at text, cloud_seq bigint,
               purged boolean, op text, meta jsonb, place bigint)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
  WITH v AS MATERIALIZED (
    SELECT v.entity, v.entity_id, v.entry_id,
      ARRAY(SELECT jsonb_array_elements_text(v.bases::jsonb)) AS bases, v.op = 'finalize' AS final,
      v.effective_hlc, v.device_id, v.hash, v.at, v.cloud_seq, v.purged_by IS NOT NULL AS purged,
      v.op, v.meta::jsonb AS meta
    FROM syncd.versions(organization, entities, ids) v
  ), named AS (
    SELECT DISTINCT v.entity, v.entity_id, unnest(v.bases) AS base FROM v
  )
  SELECT v.*, CASE WHEN v.final OR n.base IS NULL THEN
    row_number() OVER (PARTITION BY v.entity, v.entity_id, v.final OR n.base IS NULL
      ORDER BY v.final DESC, v.effective_hlc DESC, v.device_id DESC, v.entry_id DESC) END
  FROM v LEFT JOIN named n
    ON n.entity = v.entity AND n.entity_id = v.entity_id AND n.base = v.entry_id::text
$$;

-- The conflicts between versions of some entities: each head that is not current, and each version
-- that a resolution has closed.
CREATE FUNCTION syncd.version_conflicts(organization uuid, entities text[], ids text[])
RETURNS TABLE (id uuid, kind text, entity text, entity_id text, bases text, winner uuid,
               loser uuid, detected_at text, state text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
  WITH v AS MATERIALIZED (
    SELECT * FROM syncd.ranked(organization, entities, ids)
    -- Of all else there is nothing to choose: these are facts.
    WHERE entity IN ('checkpoint', 'task', 'link', 'choice', 'purge')
  ), weighed AS (
    SELECT r.entry_id AS by_entry, r.effective_hlc AS by_hlc, r.meta ->> 'resolution' AS how, b.*,
      first_value(b.entry_id) OVER chosen AS winner, first_value(b.at) OVER chosen AS winner_at
    FROM v r JOIN v b ON b.entity = r.entity AND b.entity_id = r.entity_id
      AND b.entry_id::text = ANY (r.bases)
    WHERE cardinality(r.bases) > 1
    WINDOW chosen AS (PARTITION BY r.entry_id ORDER BY b.final DESC, b.effective_hlc DESC,
                      b.device_id DESC, b.entry_id DESC)
  ), closed AS (
    SELECT DISTINCT ON (w.entry_id) w.*
    FROM weighed w WHERE w.entry_id <> w.winner
    ORDER BY w.entry_id, w.by_hlc DESC, w.by_entry DESC
  )
  SELECT syncd.conflict_id('version', c.entry_id), 'version', c.entity, c.entity_id,
    to_json(c.bases)::text, c.winner, c.entry_id, greatest(c.at COLLATE "C", c.winner_at COLLATE "C"),
    coalesce(c.how, 'merged')
  FROM closed c
  UNION ALL
  SELECT syncd.conflict_id('version', h.entry_id), 'version', h.entity, h.entity_id,
    to_json(h.bases)::text, w.entry_id, h.entry_id, greatest(h.at COLLATE "C", w.at COLLATE "C"),
    CASE WHEN h.hash = w.hash THEN 'identical' WHEN h.purged THEN 'purged' ELSE 'open' END
  FROM v h JOIN v w ON w.entity = h.entity AND w.entity_id = h.entity_id AND w.place = 1
  WHERE h.place > 1 AND NOT EXISTS (SELECT FROM closed c WHERE c.entry_id = h.entry_id)
$$;

-- Bring the views of some entities in line with the log. Returns the parents that checkpoints with
-- these ids had before and have now.
CREATE FUNCTION syncd.settle(organization uuid, entities text[], ids text[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
DECLARE
  contested boolean := true;
  parents text[];
BEGIN
  IF 'checkpoint' = ANY (entities) THEN
    -- What these checkpoints have cost so far is taken back, and what they cost now is added.
    WITH v AS MATERIALIZED (
      SELECT * FROM syncd.ranked(organization, entities, ids)
    ), before AS MATERIALIZED (
      SELECT c.id, c.task_id, c.agent_id, c.agent_type, c.iteration, c.tokens, c.hlc, c.parent_id,
        syncd.seconds(c.checkpoint_data) AS seconds
      FROM (SELECT DISTINCT unnest(ids) AS id) AS t CROSS JOIN LATERAL (
        SELECT * FROM syncd.checkpoints c WHERE c.organization_id = organization
          AND c.id BETWEEN t.id AND t.id ORDER BY c.id OFFSET 0) c
    ), after AS (
      INSERT INTO syncd.checkpoints AS c
      SELECT organization, r.entity_id, f.task_id, r.meta ->> 'agent', r.meta ->> 'agent_type',
        (r.meta ->> 'iteration')::bigint, r.meta ->> 'phase', r.meta ->> 'status',
        r.meta ->> 'reason', (r.meta ->> 'tokens')::bigint, syncd.parent(r.meta), r.final, r.hash,
        r.entry_id, r.cloud_seq, f.device_id, f.effective_hlc, syncd.at_hlc(f.effective_hlc),
        syncd.derived(w.body, w.key_id)
      FROM v r
      JOIN (
        SELECT DISTINCT ON (v.entity_id) v.entity_id, v.meta ->> 'task_id' AS task_id, v.device_id,
          v.effective_hlc
        FROM v WHERE v.entity = 'checkpoint'
        ORDER BY v.entity_id, v.op = 'create' DESC, v.entry_id::text = v.entity_id DESC,
          v.effective_hlc, v.entry_id) f ON f.entity_id = r.entity_id
      JOIN LATERAL (
        SELECT l.body, l.key_id FROM syncd.log l
        WHERE l.organization_id = organization AND l.cloud_seq BETWEEN r.cloud_seq AND r.cloud_seq
        ORDER BY l.cloud_seq OFFSET 0) w ON true
      WHERE r.place = 1 AND r.entity = 'checkpoint'
      ON CONFLICT (organization_id, id) DO UPDATE SET
        task_id = excluded.task_id, agent_id = excluded.agent_id, agent_type = excluded.agent_type,
        iteration = excluded.iteration, phase = excluded.phase, status = excluded.status,
        reason = excluded.reason, tokens = excluded.tokens, parent_id = excluded.parent_id,
        final = excluded.final, hash = excluded.hash, entry_id = excluded.entry_id,
        cloud_seq = excluded.cloud_seq, device_id = excluded.device_id, hlc = excluded.hlc,
        created_at = excluded.created_at, checkpoint_data = excluded.checkpoint_data
      RETURNING c.id, c.task_id, c.agent_id, c.agent_type, c.iteration, c.tokens, c.hlc,
        c.parent_id, syncd.seconds(c.checkpoint_data) AS seconds
    ), spent AS (
      INSERT INTO syncd.costs AS k
      SELECT organization, d.task_id, syncd.day_of(d.hlc), syncd.worker(d.agent_id, d.agent_type),
        d.agent_id, d.agent_type, sum(d.sign),
        coalesce(max(d.iteration) FILTER (WHERE d.sign > 0), 0), sum(d.sign * d.tokens),
        sum(d.sign * d.seconds), min(d.hlc), max(d.hlc)
      FROM (
        -- A purge takes the content away, not the time that was spent.
        SELECT 1 AS sign, a.task_id, a.agent_id, a.agent_type, a.iteration, a.tokens::numeric,
          a.hlc, coalesce(a.seconds, b.seconds, 0) AS seconds
        FROM after a LEFT JOIN before b USING (id)
        UNION ALL
        SELECT -1, b.task_id, b.agent_id, b.agent_type, b.iteration, b.tokens, b.hlc,
          coalesce(b.seconds, 0)
        FROM before b JOIN after a USING (id)) d
      GROUP BY d.task_id, syncd.day_of(d.hlc), d.agent_id, d.agent_type
      ON CONFLICT (organization_id, task_id, day, worker) DO UPDATE SET
        checkpoints = k.checkpoints + excluded.checkpoints,
        iterations = greatest(k.iterations, excluded.iterations),
        tokens = k.tokens + excluded.tokens, seconds = k.seconds + excluded.seconds,
        first_hlc = least(k.first_hlc, excluded.first_hlc),
        last_hlc = greatest(k.last_hlc, excluded.last_hlc)
    )
    SELECT EXISTS (SELECT FROM v WHERE v.place > 1 OR cardinality(v.bases) > 1) OR EXISTS (
        SELECT FROM syncd.conflicts c WHERE c.organization_id = organization
          AND c.entity = ANY (entities) AND c.entity_id = ANY (ids)),
      ARRAY(SELECT b.parent_id FROM before b UNION ALL SELECT a.parent_id FROM after a)
    INTO contested, parents;
  ELSE
    parents := ARRAY(
      SELECT c.parent_id FROM unnest(ids) AS t(id) CROSS JOIN LATERAL (
        SELECT * FROM syncd.checkpoints c WHERE c.organization_id = organization
          AND c.id BETWEEN t.id AND t.id ORDER BY c.id OFFSET 0) c);
  END IF;

  -- Of most kinds there is nothing to choose. Of the others there is no conflict, and was none,
  -- as long as each version has replaced the one before.
  IF contested AND entities && ARRAY['checkpoint', 'task', 'link', 'choice', 'purge'] THEN
    DELETE FROM syncd.conflicts c USING unnest(entities, ids) AS t(entity, id)
    WHERE c.organization_id = organization AND c.kind = 'version' AND c.entity = t.entity
      AND c.entity_id = t.id;
    INSERT INTO syncd.conflicts
    SELECT organization, v.* FROM syncd.version_conflicts(organization, entities, ids) v;
  END IF;

  IF 'task' = ANY (entities) THEN
    UPDATE syncd.tasks t SET
      title = coalesce(syncd.derived(l.body, l.key_id) ->> 'title', ''),
      status = coalesce(l.meta::jsonb ->> 'status', ''),
      budget = (l.meta::jsonb ->> 'budget')::bigint,
      retention = coalesce(l.meta::jsonb ->> 'retention', 'default'), entry_id = l.entry_id,
      waits_for = left(coalesce(syncd.derived(l.body, l.key_id) #>> '{escalation,reason}',
                                syncd.derived(l.body, l.key_id) #>> '{deferred,reason}', ''), 2000)
    FROM syncd.ranked(organization, entities, ids) r
    JOIN LATERAL (
      SELECT * FROM syncd.log l
      WHERE l.organization_id = organization AND l.cloud_seq BETWEEN r.cloud_seq AND r.cloud_seq
      ORDER BY l.cloud_seq OFFSET 0) l ON true
    WHERE r.place = 1 AND r.entity = 'task'
      AND t.organization_id = organization AND t.id = r.entity_id;
  END IF;

  IF 'message' = ANY (entities) THEN
    PERFORM syncd.settle_messages(organization, entities, ids);
  END IF;
  RETURN parents;
END $$;

-- Several machines may have said the same; the first one counts. Who was told has acknowledged it if
-- anybody says so.
CREATE FUNCTION syncd.settle_messages(organization uuid, entities text[], ids text[]) RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
  INSERT INTO syncd.messages AS m
  SELECT DISTINCT ON (v.entity_id) organization, v.entity_id, v.meta::jsonb ->> 'task_id',
    v.meta::jsonb ->> 'sender', v.meta::jsonb ->> 'recipient', syncd.derived(v.body, v.key_id),
    syncd.at_hlc(v.effective_hlc),
    (SELECT syncd.at_hlc(min(a.effective_hlc))
     FROM syncd.versions(organization, ARRAY[v.entity], ARRAY[v.entity_id]) a
     WHERE a.op = 'acknowledge'),
    v.entry_id
  FROM syncd.versions(organization, entities, ids) v
  WHERE v.entity = 'message' AND v.op = 'create'
  ORDER BY v.entity_id, v.effective_hlc, v.entry_id
  ON CONFLICT (organization_id, id) DO UPDATE SET
    content = excluded.content, created_at = excluded.created_at,
    acknowledged_at = excluded.acknowledged_at, entry_id = excluded.entry_id
$$;

-- Branches: checkpoints of one task with the same parent from different devices. The newest goes
-- on; each other is a conflict until somebody has chosen.
-- `parents` have new children; `changed` are checkpoints that were there before, `moved` their
-- parents before and now.
CREATE FUNCTION syncd.settle_forks(organization uuid, parents text[], changed text[],
                                   moved text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
DECLARE
  forked text[];
BEGIN
  -- Who has no parent is no branch. There is one for each task: none of them must be looked at.
  parents := array_remove(parents, '');
  moved := array_remove(moved, '');
  SELECT array_agg(DISTINCT f.parent_id) INTO forked FROM (
    SELECT c.parent_id FROM (SELECT DISTINCT unnest(parents || moved) AS id) AS p
    CROSS JOIN LATERAL (
      SELECT * FROM syncd.checkpoints c WHERE c.organization_id = organization
        AND c.parent_id BETWEEN p.id AND p.id ORDER BY c.parent_id OFFSET 0) c
    GROUP BY c.task_id, c.parent_id HAVING min(c.device_id::text) <> max(c.device_id::text)) f;
  IF forked IS NULL AND changed IS NULL THEN
    RETURN;
  END IF;
  DELETE FROM syncd.conflicts c
  WHERE c.organization_id = organization AND c.kind = 'fork' AND c.entity = 'checkpoint'
    AND c.entity_id = ANY (changed || ARRAY(
      SELECT k.id FROM unnest(forked || moved) AS p(id) CROSS JOIN LATERAL (
        SELECT * FROM syncd.checkpoints k WHERE k.organization_id = organization
          AND k.parent_id BETWEEN p.id AND p.id ORDER BY k.parent_id OFFSET 0) k));
  IF forked IS NULL THEN
    RETURN;
  END IF;
  INSERT INTO syncd.conflicts
  SELECT organization, syncd.conflict_id('fork', k.first_entry), 'fork', 'checkpoint', k.id,
    to_json(ARRAY[k.parent_id])::text, k.winner, k.first_entry,
    greatest(k.at COLLATE "C", k.winner_at COLLATE "C"),
    coalesce((SELECT l.meta::jsonb ->> 'resolution'
              FROM syncd.versions(organization, ARRAY['choice'], ARRAY[k.id]) l
              ORDER BY l.effective_hlc DESC, l.entry_id DESC LIMIT 1), 'open')
  FROM (
    SELECT b.*, first_value(b.first_entry) OVER newest AS winner,
      first_value(b.at) OVER newest AS winner_at,
      min(b.device_id::text) OVER branch <> max(b.device_id::text) OVER branch AS forked
    FROM (
      SELECT ch.id, ch.parent_id, ch.task_id, ch.device_id, ch.hlc, f.entry_id AS first_entry, f.at
      FROM unnest(forked) AS p(id) CROSS JOIN LATERAL (
        SELECT * FROM syncd.checkpoints ch WHERE ch.organization_id = organization
          AND ch.parent_id BETWEEN p.id AND p.id ORDER BY ch.parent_id OFFSET 0) ch
      JOIN LATERAL (
        SELECT l.entry_id, l.at FROM syncd.versions(organization, ARRAY['checkpoint'], ARRAY[ch.id]) l
        ORDER BY l.op = 'create' DESC, l.entry_id::text = l.entity_id DESC, l.effective_hlc,
          l.entry_id LIMIT 1) f ON true
    ) b
    WINDOW branch AS (PARTITION BY b.task_id, b.parent_id),
      newest AS (PARTITION BY b.task_id, b.parent_id ORDER BY b.hlc DESC, b.id COLLATE "C" DESC)
  ) k
  WHERE k.forked AND k.first_entry <> k.winner;
END $$;

-- --- what devices call ------------------------------------------------------------------------

-- Which organizations this login belongs to, and as what.
CREATE FUNCTION syncd.whoami()
RETURNS TABLE (organization_id uuid, organization text, member text, kind text, machine text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT o.organization_id, o.name, m.name, m.kind, l.name
  FROM syncd.logins l
  JOIN syncd.organizations o USING (organization_id)
  JOIN syncd.members m USING (organization_id, member_id)
  WHERE l.login = session_user AND l.organization_id = (SELECT syncd.my_org())
$$;

-- Where the replica stands with a device; a device unknown so far becomes this login's.
CREATE FUNCTION syncd.hello(organization uuid, device uuid, key bytea, client text)
RETURNS TABLE (schema_version integer, now_ms bigint, device_seq bigint, chain bytea,
               public_key bytea, cloud_seq bigint, recovery_open boolean, channel text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
BEGIN
  PERFORM syncd.require(organization, false);
  IF octet_length(key) IS DISTINCT FROM 32 THEN
    RAISE EXCEPTION 'a public key has 32 bytes' USING ERRCODE = 'SY004';
  END IF;
  INSERT INTO syncd.devices AS d (organization_id, device_id, login, public_key, chain, first_seen,
                             last_seen, version)
  VALUES (organization, device, session_user, key, decode(repeat('00', 32), 'hex'),
          syncd.clock(), syncd.clock(), left(client, 40))
  ON CONFLICT (organization_id, device_id)
    DO UPDATE SET last_seen = syncd.clock(), version = left(client, 40), login = session_user
    WHERE d.login = session_user OR (d.login = '' AND d.public_key = key);
  PERFORM syncd.require_device(organization, device, false);
  RETURN QUERY SELECT (SELECT max(version) FROM syncd.schema_migrations),
    floor(extract(epoch FROM syncd.clock()) * 1000)::bigint, d.device_seq, d.chain, d.public_key,
    o.cloud_seq, o.recovery_open, o.channel
  FROM syncd.devices d JOIN syncd.organizations o USING (organization_id)
  WHERE d.organization_id = organization AND d.device_id = device;
END $$;

-- While an administrator has opened recovery: a lost machine's device that the replica does not know
-- either. It is nobody's until the machine comes back.
CREATE FUNCTION syncd.introduce(organization uuid, device uuid, key bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.require(organization, true);
  IF octet_length(key) IS DISTINCT FROM 32 THEN
    RAISE EXCEPTION 'a public key has 32 bytes' USING ERRCODE = 'SY004';
  END IF;
  INSERT INTO syncd.devices (organization_id, device_id, login, public_key, chain, first_seen,
                             last_seen)
  SELECT organization, device, '', key, decode(repeat('00', 32), 'hex'), syncd.clock(), syncd.clock()
  FROM syncd.organizations o WHERE o.organization_id = organization AND o.recovery_open
  ON CONFLICT DO NOTHING;
  PERFORM syncd.require_device(organization, device, true);
END $$;

-- Why a purge is refused, or NULL: a hold keeps every body that is here or may still come.
-- `bodiless` come with it, and have none. The log is asked for single entries, and only of a task
-- that is held: as one join, the organization's whole log would be read for every purge.
CREATE FUNCTION syncd.held(organization uuid, meta jsonb, bodiless uuid[]) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM syncd.tasks t WHERE t.organization_id = organization
                   AND t.id = meta ->> 'task_id' AND t.retention = 'legal_hold') THEN
    RETURN NULL;
  END IF;
  IF EXISTS (
      SELECT FROM unnest(syncd.named(meta)) AS n(id) LEFT JOIN LATERAL (
        SELECT true AS is_gone FROM syncd.log l WHERE l.organization_id = organization
          AND l.entry_id BETWEEN n.id AND n.id AND l.refused IS NULL AND l.body IS NULL
        ORDER BY l.entry_id OFFSET 0) l ON true
      WHERE n.id <> ALL (bodiless) AND l.is_gone IS NULL) THEN
    RETURN 'its task is on legal hold';
  END IF;
  RETURN NULL;
END $$;

-- Note how much has come in today, and how much was purged.
CREATE FUNCTION syncd.grow(organization uuid, entries bigint, bytes bigint, purged bigint)
RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  INSERT INTO syncd.growth AS g
  VALUES (organization, (syncd.clock() AT TIME ZONE 'UTC')::date, entries, bytes, purged)
  ON CONFLICT (organization_id, day) DO UPDATE SET entries = g.entries + excluded.entries,
    bytes = g.bytes + excluded.bytes, purged = g.purged + excluded.purged
$$;

-- Take the bodies away that the purges of a batch name, and those of its entries that purges have
-- named before. All devices come to the same: of several purges the first by id is named.
-- `places` keeps each statement from reading the whole log.
CREATE FUNCTION syncd.purge(organization uuid, device uuid, first_seq bigint, size integer,
                            stamp uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
DECLARE
  places bigint[];
  gone text[];
  freed bigint;
BEGIN
  INSERT INTO syncd.awaited
  SELECT organization, n.id, l.entry_id, l.meta::jsonb ->> 'task_id'
  FROM (
    SELECT * FROM syncd.log l WHERE l.organization_id = organization AND l.device_id = device
      AND l.device_seq BETWEEN first_seq AND first_seq + size - 1 AND l.batch = stamp
      AND l.entity = 'purge' AND l.refused IS NULL ORDER BY l.device_seq OFFSET 0) AS l
  CROSS JOIN LATERAL unnest(syncd.named(l.meta::jsonb)) AS n(id)
  ON CONFLICT DO NOTHING;
  places := ARRAY(
    SELECT l.cloud_seq
    FROM (SELECT DISTINCT a.entry_id FROM syncd.awaited a
          WHERE a.organization_id = organization) AS a
    CROSS JOIN LATERAL (
      SELECT l.cloud_seq FROM syncd.log l WHERE l.organization_id = organization
        AND l.entry_id BETWEEN a.entry_id AND a.entry_id AND l.refused IS NULL
      ORDER BY l.entry_id OFFSET 0) AS l);
  IF places = '{}' THEN
    RETURN;
  END IF;
  WITH here AS MATERIALIZED (
    SELECT l.entry_id, octet_length(l.body) AS bytes FROM syncd.log l
    WHERE l.organization_id = organization AND l.cloud_seq = ANY (places)
  ), due AS (
    DELETE FROM syncd.awaited a
    WHERE a.organization_id = organization AND a.entry_id IN (SELECT h.entry_id FROM here h)
    RETURNING a.entry_id, a.task_id, a.purge_id
  ), purged AS (
    UPDATE syncd.log l SET body = NULL, purged_by = least(l.purged_by, d.purge_id)
    FROM (SELECT due.entry_id, due.task_id, min(due.purge_id::text)::uuid AS purge_id
          FROM due GROUP BY 1, 2) d
    WHERE l.organization_id = organization AND l.cloud_seq = ANY (places)
      AND l.entry_id = d.entry_id AND l.entity = 'checkpoint'
      AND l.meta::jsonb ->> 'task_id' = d.task_id
    RETURNING l.entry_id, l.entity_id
  )
  SELECT array_agg(DISTINCT p.entity_id), coalesce(sum(h.bytes), 0) INTO gone, freed
  FROM purged p JOIN here h USING (entry_id);
  IF gone IS NOT NULL THEN
    PERFORM syncd.grow(organization, 0, 0, freed);
    PERFORM syncd.settle(organization, array_fill('checkpoint'::text, ARRAY[cardinality(gone)]),
                         gone);
  END IF;
END $$;

-- Why single entries cannot be kept, found one by one. Slow, and only asked when the whole batch
-- failed.
CREATE FUNCTION syncd.defects(organization uuid, entry_ids uuid[], entities text[], ids text[],
  ops text[], bases text[], metas text[], key_ids text[], bodies bytea[]) RETURNS text[]
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found text[] := '{}';
  reason text;
  bodiless uuid[] := ARRAY(SELECT b.id FROM unnest(entry_ids, bodies) AS b(id, body)
                           WHERE b.body IS NULL);
  i record;
BEGIN
  FOR i IN SELECT * FROM unnest(entry_ids, entities, ids, ops, bases, metas, key_ids, bodies)
             WITH ORDINALITY AS i(entry_id, entity, id, op, bases, meta, key_id, body, n) LOOP
    reason := NULL;
    BEGIN
      reason := syncd.flaw(i.entity, i.id, i.op, i.bases, i.meta::jsonb, false);
      PERFORM syncd.derived(i.body, i.key_id);
      IF reason IS NULL AND i.entity = 'purge' THEN
        reason := syncd.held(organization, i.meta::jsonb, bodiless);
      END IF;
      IF reason IS NULL AND (EXISTS (SELECT FROM syncd.log l WHERE l.organization_id = organization
                    AND l.entry_id = i.entry_id AND l.refused IS NULL)
         OR i.entry_id = ANY (entry_ids[:i.n - 1])) THEN
        reason := 'its id is in use by another entry';
      END IF;
    EXCEPTION WHEN data_exception OR program_limit_exceeded THEN
      reason := 'PostgreSQL cannot hold it: ' || SQLERRM;
    END;
    found := found || reason;
  END LOOP;
  RETURN found;
END $$;

-- Store entries of one device that follow each other, and answer for each of them. `given_up` is
-- for entries that the device itself has found it cannot bring here: only their header is kept.
-- `purged` names the purge for checkpoints whose body the device no longer has: it was accepted
-- before, or this device had no replica then.
-- A machine's session is young as a rule, as each has its own: nothing is planned twice in it. Plans
-- of a time when the tables were empty stay in use when they no longer are: where any index on the
-- organization would have done then, ORDER BY names the one that will do.
CREATE FUNCTION syncd.push(organization uuid, device uuid, first_seq bigint, previous bytea,
  entry_ids uuid[], entities text[], ids text[], ops text[], bases text[], hlcs bigint[],
  actors text[], ats text[], key_ids text[], metas text[], hashes text[], chains bytea[],
  signatures bytea[], effective bigint[], bodies bytea[], given_up text[], purged uuid[])
RETURNS TABLE (device_seq bigint, verdict text, cloud_seq bigint, batch uuid,
               effective_hlc bigint, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB'
SET plan_cache_mode = force_generic_plan AS $$
DECLARE
  size integer := cardinality(entry_ids);
  last_seq bigint;
  body_max integer;
  continued boolean;
  differing boolean;
  had bigint;
  awaits boolean;
  known bigint[];
  free bigint[] := '{}';
  stamp uuid := gen_random_uuid();
  latest bigint := floor(extract(epoch FROM syncd.clock()) * 1000)::bigint + 300000 << 16;
BEGIN
  PERFORM syncd.require(organization, true);
  PERFORM syncd.require_device(organization, device, true);
  IF size IS NULL OR size NOT BETWEEN 1 AND 1000 OR first_seq < 1 THEN
    RAISE EXCEPTION 'a batch has 1 to 1000 entries' USING ERRCODE = 'SY004';
  END IF;
  IF ARRAY[array_dims(entry_ids), array_dims(entities), array_dims(ids), array_dims(ops),
        array_dims(bases), array_dims(hlcs), array_dims(actors), array_dims(ats),
        array_dims(key_ids), array_dims(metas), array_dims(hashes), array_dims(chains),
        array_dims(signatures), array_dims(effective), array_dims(bodies), array_dims(given_up),
        array_dims(purged)] <> array_fill(format('[1:%s]', size), ARRAY[17]) THEN
    RAISE EXCEPTION 'the columns of a batch have the same length' USING ERRCODE = 'SY004';
  END IF;
  -- The arrays are larger than what is in them, and need not be looked through to know.
  IF pg_column_size(bodies) + pg_column_size(entities) + pg_column_size(ids) + pg_column_size(ops)
      + pg_column_size(bases) + pg_column_size(actors) + pg_column_size(ats)
      + pg_column_size(key_ids) + pg_column_size(metas) + pg_column_size(hashes) > 32000000
    AND coalesce((SELECT sum(octet_length(b)) FROM unnest(bodies) AS b), 0)
      + (SELECT sum(octet_length(t)) FROM unnest(entities || ids || ops || bases || actors || ats
           || key_ids || metas || hashes) AS t) > 32000000 THEN
    RAISE EXCEPTION 'a batch has at most 32 MB' USING ERRCODE = 'SY004';
  END IF;

  -- From here to the commit, nobody else numbers entries of this organization.
  SELECT o.cloud_seq, o.body_limit INTO STRICT last_seq, body_max FROM syncd.organizations o
  WHERE o.organization_id = organization FOR UPDATE;
  SELECT coalesce(array_agg(l.device_seq - first_seq + 1) FILTER (WHERE l.device_seq >= first_seq),
                  '{}'),
    bool_or(l.device_seq < first_seq AND l.chain = push.previous),
    bool_or(l.chain <> chains[l.device_seq - first_seq + 1]),
    (SELECT d.device_seq FROM syncd.devices d
     WHERE d.organization_id = organization AND d.device_id = device),
    EXISTS (SELECT FROM syncd.awaited a
            WHERE a.organization_id = organization AND entry_ids @> ARRAY[a.entry_id])
  INTO known, continued, differing, had, awaits
  FROM (
    SELECT * FROM syncd.log l WHERE l.organization_id = organization AND l.device_id = device
      AND l.device_seq BETWEEN first_seq - 1 AND first_seq + size - 1
    ORDER BY l.device_seq OFFSET 0) l;
  IF differing OR (CASE WHEN first_seq = 1 THEN previous = decode(repeat('00', 32), 'hex')
                        ELSE continued END) IS NOT TRUE THEN
    RAISE EXCEPTION 'these entries do not continue what is known of this device'
      USING ERRCODE = 'SY003';
  END IF;

  -- What the log once had and lost gets its numbers back, so that they stay contiguous.
  IF known = '{}' AND first_seq <= had THEN
    free := ARRAY(
      SELECT n FROM generate_series(
        coalesce((SELECT l.cloud_seq FROM syncd.log l WHERE l.organization_id = organization
                  AND l.device_id = device AND l.device_seq = first_seq - 1), 0) + 1,
        coalesce((SELECT min(l.cloud_seq) - 1 FROM syncd.log l
                  WHERE l.organization_id = organization AND l.device_id = device
                    AND l.device_seq > first_seq), last_seq)) AS g(n)
      WHERE NOT EXISTS (SELECT FROM syncd.log l
                        WHERE l.organization_id = organization AND l.cloud_seq = g.n)
      ORDER BY n LIMIT size);
  END IF;

  BEGIN
    last_seq := syncd.store(organization, device, first_seq, previous, known, free, stamp, last_seq,
      latest, body_max, entry_ids, entities, ids, ops, bases, hlcs, actors, ats, key_ids, metas,
      hashes, chains, signatures, effective, bodies, given_up, purged, NULL);
  EXCEPTION WHEN data_exception OR unique_violation OR not_null_violation
              OR program_limit_exceeded THEN
    last_seq := syncd.store(organization, device, first_seq, previous, known, free, stamp, last_seq,
      latest, body_max, entry_ids, entities, ids, ops, bases, hlcs, actors, ats, key_ids, metas,
      hashes, chains, signatures, effective, bodies, given_up, purged,
      syncd.defects(organization, entry_ids, entities, ids, ops, bases, metas, key_ids, bodies));
  END;
  IF awaits OR 'purge' = ANY (entities) THEN
    PERFORM syncd.purge(organization, device, first_seq, size, stamp);
  END IF;
  UPDATE syncd.organizations o SET cloud_seq = last_seq WHERE o.organization_id = organization;
  UPDATE syncd.devices d SET device_seq = first_seq + size - 1, chain = chains[size],
    last_seen = syncd.clock()
  WHERE d.organization_id = organization AND d.device_id = device
    AND d.device_seq < first_seq + size - 1;

  RETURN QUERY SELECT l.device_seq, CASE
      WHEN l.refused IS NOT NULL THEN 'refused'
      WHEN l.batch <> stamp THEN 'duplicate'
      WHEN l.effective_hlc < l.hlc THEN 'capped'
      ELSE 'accepted' END,
    l.cloud_seq, l.batch, l.effective_hlc, l.refused
  FROM syncd.log l
  WHERE l.organization_id = organization AND l.device_id = device
    AND l.device_seq BETWEEN first_seq AND first_seq + size - 1
  ORDER BY l.device_seq;
END $$;

-- Check what is new of a batch and write it to the log and the views; returns the last number used.
-- `defects` are found when this has failed without them: what single entries cannot be kept for. Only
-- with them does it take bodies that JSONB cannot hold as they are, which costs time.
-- One statement does it all: each session has to plan it, and to keep the plan.
CREATE FUNCTION syncd.store(organization uuid, device uuid, first_seq bigint, previous bytea,
  known bigint[], free bigint[], stamp uuid, last_seq bigint, latest bigint, body_max integer,
  entry_ids uuid[], entities text[], ids text[], ops text[], bases text[], hlcs bigint[],
  actors text[], ats text[], key_ids text[], metas text[], hashes text[], chains bytea[],
  signatures bytea[], effective bigint[], bodies bytea[], given_up text[], purged uuid[],
  defects text[]) RETURNS bigint
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
DECLARE
  size integer := cardinality(entry_ids);
  received timestamptz := syncd.clock();
  written bigint;
  flawed bigint;
  parents text[];
  moved text[];
  touched_entities text[];
  touched_ids text[];
BEGIN
  IF defects IS NULL AND 'purge' = ANY (entities) AND EXISTS (
      SELECT FROM unnest(entities, metas, given_up) AS i(entity, meta, given_up)
      WHERE i.entity = 'purge' AND i.given_up IS NULL AND syncd.held(organization, i.meta::jsonb,
        ARRAY(SELECT b.id FROM unnest(entry_ids, bodies) AS b(id, body) WHERE b.body IS NULL))
        IS NOT NULL) THEN
    RAISE EXCEPTION 'a task is on hold' USING ERRCODE = 'data_exception';
  END IF;

  WITH checked AS MATERIALIZED (
    SELECT j.*, coalesce(free[j.place], last_seq + j.place - cardinality(free)) AS cloud_seq,
      CASE WHEN j.refused IS NULL THEN j.meta_text::jsonb END AS meta
    FROM (
      SELECT i.*, least(i.hlc, i.claimed, latest) AS effective_hlc,
        i.n - CASE WHEN known = '{}' THEN 0
                   ELSE (SELECT count(*) FROM unnest(known) AS k WHERE k < i.n) END AS place,
        coalesce(CASE
          WHEN i.given_up IS NOT NULL THEN left(i.given_up, 1000)
          WHEN i.body IS NULL AND (i.purged IS NULL OR i.entity <> 'checkpoint') THEN
            'it has no body'
          WHEN octet_length(i.body) > body_max THEN
            format('its body has %s bytes, at most %s are allowed', octet_length(i.body), body_max)
          WHEN greatest(octet_length(i.meta_text), octet_length(i.bases), octet_length(i.actor),
              octet_length(i.hash), octet_length(i.at), octet_length(i.key_id)) > 65536 THEN
            'its header has a field of more than 65536 bytes'
          WHEN octet_length(i.chain) <> 32 OR i.chain <> sha256(i.previous || syncd.header(
              i.entry_id, device, first_seq + i.n - 1, i.entity, i.id, i.op, i.bases, i.hlc,
              i.actor, i.at, i.key_id, i.meta_text) || convert_to(i.hash, 'UTF8')) THEN
            'its header does not match its chain value'
          WHEN i.key_id = '' AND i.hash <> encode(sha256(i.body), 'hex') THEN
            'its body does not match its hash'
          END, defects[i.n]) AS refused
      FROM (
        -- Unnested in the select list: in FROM, each array would be copied first.
        SELECT generate_series(1, size) AS n, unnest(entry_ids) AS entry_id,
          unnest(entities) AS entity, unnest(ids) AS id, unnest(ops) AS op,
          unnest(store.bases) AS bases, unnest(hlcs) AS hlc, unnest(actors) AS actor,
          unnest(ats) AS at, unnest(key_ids) AS key_id, unnest(metas) AS meta_text,
          unnest(hashes) AS hash, unnest(chains) AS chain,
          unnest(store.previous || chains[:size - 1]) AS previous,
          unnest(signatures) AS signature, unnest(effective) AS claimed, unnest(bodies) AS body,
          unnest(store.given_up) AS given_up, unnest(store.purged) AS purged) AS i
      WHERE i.n <> ALL (known)
      -- So that nothing is computed once for each use of it.
      OFFSET 0) AS j
  ), logged AS (
    INSERT INTO syncd.log
    SELECT organization, c.cloud_seq, stamp, c.entry_id, device, first_seq + c.n - 1, c.entity,
      c.id, c.op, c.bases, c.hlc, c.actor, c.at, c.key_id, c.meta_text, c.hash, c.chain,
      c.signature, c.effective_hlc, received, c.refused, CASE WHEN c.refused IS NULL THEN c.body END,
      CASE WHEN c.refused IS NULL AND c.body IS NULL THEN c.purged END
    FROM checked c
  ), grown AS (
    INSERT INTO syncd.growth AS g
    SELECT organization, (received AT TIME ZONE 'UTC')::date, count(*),
      sum(coalesce(octet_length(c.body), 0) + octet_length(c.entity) + octet_length(c.id)
        + octet_length(c.op) + octet_length(c.bases) + octet_length(c.actor) + octet_length(c.at)
        + octet_length(c.key_id) + octet_length(c.meta_text) + octet_length(c.hash)), 0
    FROM checked c HAVING count(*) > 0
    ON CONFLICT (organization_id, day) DO UPDATE SET entries = g.entries + excluded.entries,
      bytes = g.bytes + excluded.bytes
  ), incoming AS NOT MATERIALIZED (
    SELECT * FROM checked c WHERE c.refused IS NULL
  ), met AS (
    INSERT INTO syncd.tasks AS t (organization_id, id, created_at)
    SELECT organization, i.meta ->> 'task_id', syncd.at_hlc(min(i.effective_hlc))
    FROM incoming i WHERE i.meta ->> 'task_id' <> '' GROUP BY 2
    ON CONFLICT (organization_id, id) DO UPDATE SET created_at = excluded.created_at
      WHERE excluded.created_at < t.created_at
  ), created AS (
    INSERT INTO syncd.checkpoints
    SELECT organization, i.id, i.meta ->> 'task_id', i.meta ->> 'agent', i.meta ->> 'agent_type',
      (i.meta ->> 'iteration')::bigint, i.meta ->> 'phase', i.meta ->> 'status',
      i.meta ->> 'reason', (i.meta ->> 'tokens')::bigint, syncd.parent(i.meta), false, i.hash,
      i.entry_id, i.cloud_seq, device, i.effective_hlc, syncd.at_hlc(i.effective_hlc),
      CASE WHEN defects IS NOT NULL THEN syncd.derived(i.body, i.key_id)
           WHEN i.key_id = '' THEN convert_from(i.body, 'UTF8')::jsonb END
    FROM incoming i
    WHERE i.entity = 'checkpoint' AND i.op = 'create'
    ON CONFLICT DO NOTHING
    RETURNING entry_id, task_id, agent_id, agent_type, iteration, tokens, hlc,
      syncd.seconds(checkpoint_data) AS seconds
  ), spent AS (
    INSERT INTO syncd.costs AS k
    SELECT organization, c.task_id, syncd.day_of(c.hlc), syncd.worker(c.agent_id, c.agent_type),
      c.agent_id, c.agent_type, count(*), max(c.iteration), sum(c.tokens),
      coalesce(sum(c.seconds), 0), min(c.hlc), max(c.hlc)
    FROM created c GROUP BY c.task_id, syncd.day_of(c.hlc), c.agent_id, c.agent_type
    ON CONFLICT (organization_id, task_id, day, worker) DO UPDATE SET
      checkpoints = k.checkpoints + excluded.checkpoints,
      iterations = greatest(k.iterations, excluded.iterations),
      tokens = k.tokens + excluded.tokens, seconds = k.seconds + excluded.seconds,
      first_hlc = least(k.first_hlc, excluded.first_hlc),
      last_hlc = greatest(k.last_hlc, excluded.last_hlc)
  ), touched AS (
    -- Counted to see that each can be derived: a version that loses now may win later.
    SELECT i.entity, i.id
    FROM incoming i WHERE i.entry_id NOT IN (SELECT entry_id FROM created) AND i.entity <> 'key'
    GROUP BY 1, 2 HAVING count(syncd.derived(i.body, i.key_id)) >= 0
  )
  SELECT count(*), count(CASE WHEN c.refused IS NULL THEN
      syncd.flaw(c.entity, c.id, c.op, c.bases, c.meta, c.op = 'create') END),
    array_agg(CASE WHEN c.refused IS NOT NULL THEN NULL
                   WHEN c.entity = 'checkpoint' THEN syncd.parent(c.meta)
                   WHEN c.entity = 'choice' THEN c.meta ->> 'fork' END),
    (SELECT array_agg(t.entity) FROM touched t), (SELECT array_agg(t.id) FROM touched t)
  INTO written, flawed, parents, touched_entities, touched_ids
  FROM checked c;
  IF flawed > 0 THEN
    RAISE EXCEPTION 'an entry has a flaw' USING ERRCODE = 'data_exception';
  END IF;
  IF touched_ids IS NOT NULL THEN
    -- Another version may have another parent: the branches of both are looked at.
    moved := syncd.settle(organization, touched_entities, touched_ids);
  END IF;
  PERFORM syncd.settle_forks(organization, parents, touched_ids, moved);
  RETURN last_seq + written - cardinality(free);
END $$;

-- What the log has after a number: whole batches, so that each device's last entry is signed.
-- Bodies that the device has are left out. Empty if the device is up to date; refused if the entry
-- it stands at is not of the batch it names.
CREATE FUNCTION syncd.pull(organization uuid, device uuid, after bigint, after_batch uuid,
                           own_seq bigint, max_rows integer, max_bytes bigint)
RETURNS TABLE (cloud_seq bigint, batch uuid, entry_id uuid, device_id uuid, device_seq bigint,
  entity text, entity_id text, op text, bases text, hlc bigint, actor text, at text, key_id text,
  meta text, hash text, chain bytea, signature bytea, effective_hlc bigint, refused text,
  body bytea, purged_by uuid)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
-- Without statistics the planner would sort all that follows to find the next thousand, and take any
-- index on the organization for as good as another while the log is empty.
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off AS $$
DECLARE
  until bigint;
BEGIN
  PERFORM syncd.require(organization, false);
  IF after > 0 AND after_batch IS DISTINCT FROM (
      SELECT l.batch FROM syncd.log l
      WHERE l.organization_id = organization AND l.cloud_seq BETWEEN after AND after
      ORDER BY l.cloud_seq) THEN
    RAISE EXCEPTION 'the replica does not have that batch at %', after USING ERRCODE = 'SY003';
  END IF;
  SELECT coalesce(max(c.cloud_seq) FILTER (WHERE c.n <= max_rows AND c.bytes <= max_bytes),
                  min(c.cloud_seq)) INTO until
  FROM (
    SELECT w.*, w.batch IS DISTINCT FROM lead(w.batch) OVER (ORDER BY w.cloud_seq) AS ends
    FROM (
      SELECT l.cloud_seq, l.batch, row_number() OVER (ORDER BY l.cloud_seq) AS n,
        sum(coalesce(octet_length(l.body), 0)) OVER (ORDER BY l.cloud_seq) AS bytes
      FROM syncd.log l
      WHERE l.organization_id = organization AND l.cloud_seq > after
      ORDER BY l.cloud_seq LIMIT 1001
    ) w
  ) c
  WHERE c.ends AND c.n <= 1000;
  RETURN QUERY SELECT l.cloud_seq, l.batch, l.entry_id, l.device_id, l.device_seq, l.entity,
    l.entity_id, l.op, l.bases, l.hlc, l.actor, l.at, l.key_id, l.meta, l.hash, l.chain,
    l.signature, l.effective_hlc, l.refused,
    CASE WHEN l.device_id <> device OR l.device_seq > own_seq THEN l.body END, l.purged_by
  FROM syncd.log l
  WHERE l.organization_id = organization AND l.cloud_seq > after AND l.cloud_seq <= until
  ORDER BY l.cloud_seq;
END $$;

-- The greatest of some numbers at which the log has the batch that the device remembers.
CREATE FUNCTION syncd.common(organization uuid, seqs bigint[], batches uuid[]) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
BEGIN
  PERFORM syncd.require(organization, false);
  RETURN (SELECT max(l.cloud_seq) FROM unnest(seqs, batches) AS m(seq, batch)
          JOIN syncd.log l ON l.organization_id = organization AND l.cloud_seq = m.seq
            AND l.batch = m.batch);
END $$;

-- Chain values of a device at some of its numbers, to find where two histories part.
CREATE FUNCTION syncd.chains(organization uuid, device uuid, numbers bigint[])
RETURNS TABLE (device_seq bigint, chain bytea)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
BEGIN
  PERFORM syncd.require(organization, false);
  RETURN QUERY SELECT l.device_seq, l.chain FROM unnest(numbers) AS m(n)
    JOIN syncd.log l ON l.organization_id = organization AND l.device_id = device
      AND l.device_seq = m.n;
END $$;

-- A digest for each thousand entries of each device, to compare both sides completely.
CREATE FUNCTION syncd.digests(organization uuid)
RETURNS TABLE (device_id uuid, thousand bigint, entries bigint, digest text)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.require(organization, false);
  RETURN QUERY SELECT l.device_id, (l.device_seq - 1) / 1000, count(*),
    encode(sha256(string_agg(l.chain, ''::bytea ORDER BY l.device_seq)), 'hex')
  FROM syncd.log l WHERE l.organization_id = organization GROUP BY 1, 2;
END $$;

-- The entries behind one digest.
CREATE FUNCTION syncd.thousand(organization uuid, device uuid, number bigint)
RETURNS TABLE (device_seq bigint, entry_id uuid, chain bytea, cloud_seq bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.require(organization, false);
  RETURN QUERY SELECT l.device_seq, l.entry_id, l.chain, l.cloud_seq FROM syncd.log l
  WHERE l.organization_id = organization AND l.device_id = device
    AND l.device_seq BETWEEN number * 1000 + 1 AND number * 1000 + 1000;
END $$;

-- How far a device has come, for whoever looks after many of them.
CREATE FUNCTION syncd.report(organization uuid, device uuid, pulled_to bigint, still_pending bigint)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.require(organization, false);
  PERFORM syncd.require_device(organization, device, false);
  UPDATE syncd.devices d SET pulled = pulled_to, pending = still_pending, last_seen = syncd.clock()
  WHERE d.organization_id = organization AND d.device_id = device;
END $$;

-- The same, and how far its clock is ahead of this server's.
CREATE FUNCTION syncd.report_skew(organization uuid, device uuid, pulled_to bigint,
                                  still_pending bigint, skew bigint) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.report(organization, device, pulled_to, still_pending);
  UPDATE syncd.devices d SET skew_ms = skew
  WHERE d.organization_id = organization AND d.device_id = device;
END $$;

-- Signs of life of all of a device's agents, each with the milliseconds since; those of all other
-- devices come back the same way. By this server's clock alone: devices' clocks differ. Whoever is
-- not among them any more has ended.
CREATE FUNCTION syncd.presence(organization uuid, device uuid, agents text[], tasks text[],
                               types text[], sessions text[], ages bigint[])
RETURNS TABLE (device_id uuid, agent_id text, task_id text, agent_type text, session_id text,
               age_ms bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
#variable_conflict use_column
DECLARE
  now timestamptz := syncd.clock();
BEGIN
  PERFORM syncd.require(organization, cardinality(agents) > 0);
  PERFORM syncd.require_device(organization, device, false);
  IF cardinality(agents) > 1000 THEN
    RAISE EXCEPTION 'at most 1000 agents at once' USING ERRCODE = 'SY004';
  END IF;
  INSERT INTO syncd.agents AS a
  SELECT DISTINCT ON (i.agent, i.task) organization, device, i.agent, i.task, left(i.type, 512),
    left(i.session, 512), now - greatest(i.age, 0) * interval '1 ms'
  FROM unnest(agents, tasks, types, sessions, ages) AS i(agent, task, type, session, age)
  WHERE octet_length(i.agent) <= 2048 AND octet_length(i.task) <= 2048
  ORDER BY i.agent, i.task, i.age
  ON CONFLICT (organization_id, device_id, agent_id, task_id) DO UPDATE SET
    agent_type = excluded.agent_type, session_id = excluded.session_id,
    seen_at = excluded.seen_at
    WHERE excluded.seen_at > a.seen_at;
  DELETE FROM syncd.agents a
  WHERE a.organization_id = organization AND a.device_id = device AND NOT EXISTS (
    SELECT FROM unnest(agents, tasks) AS i(agent, task)
    WHERE i.agent = a.agent_id AND i.task = a.task_id);
  UPDATE syncd.devices d SET last_seen = now
  WHERE d.organization_id = organization AND d.device_id = device;
  RETURN QUERY SELECT a.device_id, a.agent_id, a.task_id, a.agent_type, a.session_id,
    greatest(0, extract(epoch FROM now - a.seen_at) * 1000)::bigint
  FROM syncd.agents a
  WHERE a.organization_id = organization AND a.device_id <> device
    AND a.seen_at > now - interval '7 days'
  ORDER BY a.seen_at DESC LIMIT 10000;
END $$;

-- Tell listeners that there is news, at most every 50 ms, or more often where few listen; returns
-- how many milliseconds to wait before asking again, 0 if they were told. Apart from push: a NOTIFY
-- takes a lock on the whole database when it commits, so that commit does not wait for the disk.
CREATE FUNCTION syncd.announce(organization uuid) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  listened text;
  pause integer;
BEGIN
  PERFORM syncd.require(organization, true);
  PERFORM set_config('synchronous_commit', 'off', true);
  pause := 5 * (SELECT count(*) FROM (SELECT FROM syncd.devices d
                                      WHERE d.organization_id = organization LIMIT 10) AS few);
  UPDATE syncd.organizations o SET announced_at = syncd.clock()
  WHERE o.organization_id = organization
    AND o.announced_at < syncd.clock() - pause * interval '1 ms'
  RETURNING o.channel INTO listened;
  IF listened IS NULL THEN
    RETURN greatest(pause, 1);
  END IF;
  PERFORM pg_notify(listened, '');
  RETURN 0;
END $$;

-- Current checkpoints whose content contains some JSON, newest first. A function, because under
-- row-level security the index of the content is not used.
CREATE FUNCTION syncd.search(organization uuid, content jsonb, most integer DEFAULT 100)
RETURNS SETOF syncd.checkpoints
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.require(organization, false);
  RETURN QUERY SELECT c.* FROM syncd.checkpoints c
  WHERE c.organization_id = organization AND c.checkpoint_data @> content
  ORDER BY c.hlc DESC LIMIT least(most, 10000);
END $$;

GRANT EXECUTE ON FUNCTION syncd.whoami(), syncd.hello(uuid, uuid, bytea, text),
  syncd.pull(uuid, uuid, bigint, uuid, bigint, integer, bigint),
  syncd.common(uuid, bigint[], uuid[]), syncd.chains(uuid, uuid, bigint[]), syncd.digests(uuid),
  syncd.thousand(uuid, uuid, bigint), syncd.report(uuid, uuid, bigint, bigint),
  syncd.report_skew(uuid, uuid, bigint, bigint, bigint), syncd.search(uuid, jsonb, integer),
  syncd.presence(uuid, uuid, text[], text[], text[], text[], bigint[])
TO syncd_auditor;
GRANT EXECUTE ON FUNCTION syncd.introduce(uuid, uuid, bytea), syncd.announce(uuid), syncd.push(uuid, uuid, bigint, bytea, uuid[],
  text[], text[], text[], text[], bigint[], text[], text[], text[], text[], text[], bytea[],
  bytea[], bigint[], bytea[], text[], uuid[])
TO syncd_member;

-- --- administration ---------------------------------------------------------------------------

-- These act as syncd_admin whoever calls them: roles granted by one administrator can then be
-- revoked by another. PostgreSQL 16 only warns, and leaves the member in, where grantors differ.
SET LOCAL ROLE syncd_admin;
ALTER DEFAULT PRIVILEGES FOR ROLE syncd_admin REVOKE EXECUTE ON FUNCTIONS FROM PUBLIC;

CREATE FUNCTION syncd.group_of(organization uuid) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT 'syncd_org_' || organization
$$;

-- From PostgreSQL 16 on, whoever made a role may grant it; said here for 15, because a server that is
-- upgraded later does not know who made it.
CREATE FUNCTION syncd.make_role(name text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('CREATE ROLE %I NOLOGIN', name);
  IF current_setting('server_version_num')::integer < 160000 THEN
    EXECUTE format('GRANT %I TO syncd_admin WITH ADMIN OPTION', name);
  END IF;
END $$;

CREATE FUNCTION syncd.create_organization(name text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made uuid := gen_random_uuid();
BEGIN
  IF EXISTS (SELECT FROM syncd.organizations o WHERE o.name = create_organization.name) THEN
    RAISE EXCEPTION 'there is an organization % already', name USING ERRCODE = 'SY010';
  END IF;
  PERFORM syncd.make_role(syncd.group_of(made));
  INSERT INTO syncd.organizations (organization_id, name, created_at, channel, announced_at)
  VALUES (made, name, syncd.clock(), 'syncd_' || replace(gen_random_uuid()::text, '-', ''),
          syncd.clock());
  RETURN made;
END $$;

-- Give a login its rights: its organization and what its member is. Then look whether it has them.
CREATE FUNCTION syncd.admit(organization uuid, login text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wanted text := 'syncd_' || (
    SELECT m.kind FROM syncd.logins l JOIN syncd.members m USING (organization_id, member_id)
    WHERE l.organization_id = organization AND l.login = admit.login);
BEGIN
  EXECUTE format('GRANT %I, %I TO %I', syncd.group_of(organization), wanted, login);
  IF NOT pg_has_role(login, syncd.group_of(organization), 'MEMBER')
      OR NOT pg_has_role(login, wanted, 'MEMBER') THEN
    RAISE EXCEPTION 'the server did not grant the roles' USING ERRCODE = 'SY011';
  END IF;
END $$;

-- Take them away, and the right to log in with them. Then look whether that worked. What somebody
-- else has granted, as an upgrade from PostgreSQL 15 does, stays, and is of no use without a login.
CREATE FUNCTION syncd.expel(organization uuid, login text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  given text;
BEGIN
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) THEN
    RETURN;
  END IF;
  EXECUTE format('ALTER ROLE %I NOLOGIN', login);
  FOR given IN SELECT g.rolname FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
               JOIN pg_roles r ON r.oid = m.member
               WHERE r.rolname = login AND g.rolname ~ '^syncd_' LOOP
    EXECUTE format('REVOKE %I FROM %I', given, login);
  END LOOP;
  IF (SELECT rolcanlogin FROM pg_roles WHERE rolname = login)
      OR EXISTS (SELECT FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
                 JOIN pg_roles r ON r.oid = m.member
                 WHERE r.rolname = login AND g.rolname ~ '^syncd_'
                   AND (m.grantor = 'syncd_admin'::regrole
                        OR current_setting('server_version_num')::integer < 160000)) THEN
    RAISE EXCEPTION 'the server did not revoke the roles' USING ERRCODE = 'SY011';
  END IF;
END $$;

-- NULL is neither.
CREATE FUNCTION syncd.require_credentials(login text, verifier text) RETURNS void
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF (login ~ '^syncd_login_[0-9a-f]{32}$' AND verifier ~ '^SCRAM-SHA-256[$][0-9]+:[^'']+$')
      IS NOT TRUE THEN
    RAISE EXCEPTION 'not a login name and a SCRAM verifier' USING ERRCODE = 'SY004';
  END IF;
END $$;

-- A role for a machine. The password comes as a SCRAM verifier, so the server never sees it.
CREATE FUNCTION syncd.make_login(organization uuid, login text, verifier text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.require_credentials(login, verifier);
  IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = login) THEN
    PERFORM syncd.make_role(login);
  END IF;
  EXECUTE format('ALTER ROLE %I LOGIN CONNECTION LIMIT 20 PASSWORD %L', login, verifier);
  EXECUTE format('ALTER ROLE %I SET statement_timeout = %L', login, '60s');
  EXECUTE format('ALTER ROLE %I SET lock_timeout = %L', login, '20s');
  EXECUTE format('ALTER ROLE %I SET idle_in_transaction_session_timeout = %L', login, '60s');
  PERFORM syncd.admit(organization, login);
END $$;

CREATE FUNCTION syncd.add_login(organization uuid, member uuid, machine text, login text,
                                verifier text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  PERFORM syncd.require_credentials(login, verifier);
  IF NOT EXISTS (SELECT FROM syncd.members m WHERE m.organization_id = organization
                 AND m.member_id = member AND m.removed_at IS NULL) THEN
    RAISE EXCEPTION 'there is no such member' USING ERRCODE = 'SY012';
  END IF;
  IF (machine <> '' AND octet_length(machine) <= 1024) IS NOT TRUE THEN
    RAISE EXCEPTION 'the name of a machine has 1 to 1024 bytes' USING ERRCODE = 'SY004';
  END IF;
  IF EXISTS (SELECT FROM pg_roles r WHERE r.rolname = add_login.login)
      OR EXISTS (SELECT FROM syncd.logins l WHERE l.organization_id = organization
                 AND l.member_id = member AND l.name = machine AND l.revoked_at IS NULL) THEN
    RAISE EXCEPTION 'there is a machine % already', machine USING ERRCODE = 'SY010';
  END IF;
  INSERT INTO syncd.logins (organization_id, login, member_id, name, added_at)
  VALUES (organization, login, member, machine, syncd.clock());
  PERFORM syncd.make_login(organization, login, verifier);
END $$;

CREATE FUNCTION syncd.add_member(organization uuid, name text, kind text, machine text,
                                 login text, verifier text) RETURNS uuid
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  made uuid := gen_random_uuid();
BEGIN
  IF NOT EXISTS (SELECT FROM syncd.organizations WHERE organization_id = organization) THEN
    RAISE EXCEPTION 'there is no such organization' USING ERRCODE = 'SY012';
  END IF;
  IF EXISTS (SELECT FROM syncd.members m WHERE m.organization_id = organization
             AND m.name = add_member.name AND m.removed_at IS NULL) THEN
    RAISE EXCEPTION 'there is a member % already', name USING ERRCODE = 'SY010';
  END IF;
  INSERT INTO syncd.members (organization_id, member_id, name, kind, added_at)
  VALUES (organization, made, name, kind, syncd.clock());
  PERFORM syncd.add_login(organization, made, machine, login, verifier);
  RETURN made;
END $$;

CREATE FUNCTION syncd.reset_login(organization uuid, name text, verifier text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NOT EXISTS (SELECT FROM syncd.logins l WHERE l.organization_id = organization
                 AND l.login = reset_login.name AND l.revoked_at IS NULL) THEN
    RAISE EXCEPTION 'there is no such machine' USING ERRCODE = 'SY012';
  END IF;
  PERFORM syncd.make_login(organization, name, verifier);
END $$;

CREATE FUNCTION syncd.revoke_login(organization uuid, name text, because text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE syncd.logins l SET revoked_at = coalesce(l.revoked_at, syncd.clock()),
    reason = CASE WHEN l.revoked_at IS NULL THEN left(because, 1000) ELSE l.reason END
  WHERE l.organization_id = organization AND l.login = revoke_login.name;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such machine' USING ERRCODE = 'SY012';
  END IF;
  PERFORM syncd.expel(organization, name);
END $$;

CREATE FUNCTION syncd.remove_member(organization uuid, member uuid, because text)
RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone text;
BEGIN
  UPDATE syncd.members m SET removed_at = syncd.clock()
  WHERE m.organization_id = organization AND m.member_id = member AND m.removed_at IS NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such member' USING ERRCODE = 'SY012';
  END IF;
  FOR gone IN SELECT l.login FROM syncd.logins l WHERE l.organization_id = organization
              AND l.member_id = member AND l.revoked_at IS NULL LOOP
    PERFORM syncd.revoke_login(organization, gone, because);
    RETURN NEXT gone;
  END LOOP;
END $$;

-- End what revoked logins still have open. A call of its own, after the revocation is committed:
-- else they could come back in between.
CREATE FUNCTION syncd.end_sessions(logins text[]) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  open_login text;
  ended integer;
BEGIN
  FOREACH open_login IN ARRAY logins LOOP
    IF open_login !~ '^syncd_login_[0-9a-f]{32}$'
        OR (SELECT rolcanlogin FROM pg_roles WHERE rolname = open_login) THEN
      RAISE EXCEPTION 'only sessions of revoked logins are ended' USING ERRCODE = 'SY004';
    END IF;
    -- To end a session takes the rights of its role.
    IF NOT pg_has_role('syncd_admin', open_login, 'USAGE') THEN
      EXECUTE format('GRANT %I TO syncd_admin', open_login);
    END IF;
  END LOOP;
  SELECT count(*) FILTER (WHERE pg_terminate_backend(a.pid, 5000)) INTO ended
  FROM pg_stat_activity a WHERE a.usename = ANY (logins);
  RETURN ended;
END $$;

-- The caller as a member of an organization; refuses everybody else.
CREATE FUNCTION syncd.me(organization uuid) RETURNS uuid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  found uuid := (
    SELECT l.member_id FROM syncd.logins l JOIN syncd.members m USING (organization_id, member_id)
    WHERE l.organization_id = organization AND l.login = session_user AND l.revoked_at IS NULL
      AND m.removed_at IS NULL AND organization = syncd.my_org());
BEGIN
  IF found IS NULL THEN
    RAISE EXCEPTION 'this login does not belong to that organization' USING ERRCODE = 'SY001';
  END IF;
  RETURN found;
END $$;

-- A member's own machines, without an administrator.
CREATE FUNCTION syncd.my_device_add(organization uuid, machine text, login text, verifier text)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  member uuid := syncd.me(organization);
BEGIN
  -- Those revoked today count: a role, once made, stays.
  IF (SELECT count(*) FROM syncd.logins l
      WHERE l.organization_id = organization AND l.member_id = member
        AND (l.revoked_at IS NULL OR l.added_at > syncd.clock() - interval '1 day')) >= 50 THEN
    RAISE EXCEPTION 'a member has at most 50 machines' USING ERRCODE = 'SY004';
  END IF;
  PERFORM syncd.add_login(organization, member, machine, login, verifier);
END $$;

CREATE FUNCTION syncd.my_device_rename(organization uuid, name text, machine text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  member uuid := syncd.me(organization);
BEGIN
  IF (machine <> '' AND octet_length(machine) <= 1024) IS NOT TRUE THEN
    RAISE EXCEPTION 'the name of a machine has 1 to 1024 bytes' USING ERRCODE = 'SY004';
  END IF;
  IF EXISTS (SELECT FROM syncd.logins l WHERE l.organization_id = organization
             AND l.member_id = member AND l.name = machine AND l.revoked_at IS NULL
             AND l.login <> my_device_rename.name) THEN
    RAISE EXCEPTION 'there is a machine % already', machine USING ERRCODE = 'SY010';
  END IF;
  UPDATE syncd.logins l SET name = machine
  WHERE l.organization_id = organization AND l.login = my_device_rename.name
    AND l.member_id = member AND l.revoked_at IS NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'you have no such machine' USING ERRCODE = 'SY012';
  END IF;
END $$;

CREATE FUNCTION syncd.my_device_revoke(organization uuid, name text, because text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  member uuid := syncd.me(organization);
BEGIN
  IF NOT EXISTS (SELECT FROM syncd.logins l WHERE l.organization_id = organization
                 AND l.login = my_device_revoke.name AND l.member_id = member) THEN
    RAISE EXCEPTION 'you have no such machine' USING ERRCODE = 'SY012';
  END IF;
  PERFORM syncd.revoke_login(organization, name, because);
END $$;

CREATE FUNCTION syncd.my_sessions_end(organization uuid, name text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  member uuid := syncd.me(organization);
BEGIN
  IF NOT EXISTS (SELECT FROM syncd.logins l WHERE l.organization_id = organization
                 AND l.login = my_sessions_end.name AND l.revoked_at IS NOT NULL
                 AND l.member_id = member) THEN
    RAISE EXCEPTION 'you have no such revoked machine' USING ERRCODE = 'SY012';
  END IF;
  RETURN syncd.end_sessions(ARRAY[name]);
END $$;

-- After a restore into another server, which has none of the roles: make them from the tables.
-- Returns the logins that need a new password.
CREATE FUNCTION syncd.sync_roles() RETURNS SETOF text
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wanted record;
BEGIN
  FOR wanted IN SELECT o.organization_id AS id FROM syncd.organizations o LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = syncd.group_of(wanted.id)) THEN
      PERFORM syncd.make_role(syncd.group_of(wanted.id));
    END IF;
  END LOOP;
  FOR wanted IN SELECT l.* FROM syncd.logins l WHERE l.revoked_at IS NULL LOOP
    IF NOT EXISTS (SELECT FROM pg_roles WHERE rolname = wanted.login) THEN
      PERFORM syncd.make_role(wanted.login);
      RETURN NEXT wanted.login;
    END IF;
    PERFORM syncd.admit(wanted.organization_id, wanted.login);
  END LOOP;
END $$;

CREATE FUNCTION syncd.set_recovery(organization uuid, open boolean) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE syncd.organizations SET recovery_open = open WHERE organization_id = organization;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'there is no such organization' USING ERRCODE = 'SY012';
  END IF;
END $$;

GRANT EXECUTE ON FUNCTION syncd.my_device_add(uuid, text, text, text),
  syncd.my_device_rename(uuid, text, text), syncd.my_device_revoke(uuid, text, text),
  syncd.my_sessions_end(uuid, text)
TO syncd_member;
