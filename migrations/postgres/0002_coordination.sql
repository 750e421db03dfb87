-- What agents have to do with each other: signs of life, messages, and facts of which there are no
-- versions to choose from.
SET LOCAL ROLE syncd_owner;

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

DO $$
DECLARE
  relation text;
  sampled text;
BEGIN
  FOREACH relation IN ARRAY ARRAY['agents', 'messages'] LOOP
    EXECUTE format('ALTER TABLE syncd.%I ENABLE ROW LEVEL SECURITY', relation);
    EXECUTE format('ALTER TABLE syncd.%I FORCE ROW LEVEL SECURITY', relation);
    EXECUTE format('CREATE POLICY own ON syncd.%I FOR SELECT
                    USING (organization_id = ANY (ARRAY[(SELECT syncd.my_org())]))', relation);
    EXECUTE format('CREATE POLICY functions ON syncd.%I TO syncd_owner USING (true)', relation);
    EXECUTE format('CREATE POLICY administration ON syncd.%I TO syncd_admin USING (true)',
                   relation);
    EXECUTE format('GRANT SELECT ON syncd.%I TO syncd_auditor, syncd_admin', relation);
    FOR sampled IN SELECT attname FROM pg_attribute
        WHERE attrelid = format('syncd.%I', relation)::regclass AND attnum > 0 LOOP
      EXECUTE format('ALTER TABLE syncd.%I ALTER %I SET STATISTICS 0', relation, sampled);
    END LOOP;
  END LOOP;
END $$;

-- What keeps an entry out of the views, or NULL. Asked of every entry, because each may become the
-- current one when another arrives; by then nobody could refuse it. Ids go into indexes, which
-- hold less than 2,700 bytes.
CREATE OR REPLACE FUNCTION syncd.flaw(entity text, id text, op text, bases text, meta jsonb, taken boolean)
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

-- The conflicts between versions of some entities: each head that is not current, and each version
-- that a resolution has closed.
CREATE OR REPLACE FUNCTION syncd.version_conflicts(organization uuid, entities text[], ids text[])
RETURNS TABLE (id uuid, kind text, entity text, entity_id text, bases text, winner uuid,
               loser uuid, detected_at text, state text)
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
  WITH v AS MATERIALIZED (
    SELECT * FROM syncd.ranked(organization, entities, ids)
    -- Of all else there is nothing to choose: these are facts.
    WHERE entity IN ('checkpoint', 'task', 'link', 'choice', 'purge')
  ), weighed AS (
    SELECT r.entry_id AS by_entry, r.effective_hlc AS by_hlc, r.resolution AS how, b.*,
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

-- Bring the views of some entities in line with the log.
CREATE OR REPLACE FUNCTION syncd.settle(organization uuid, entities text[], ids text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
BEGIN
  DELETE FROM syncd.conflicts c USING unnest(entities, ids) AS t(entity, id)
  WHERE c.organization_id = organization AND c.kind = 'version' AND c.entity = t.entity
    AND c.entity_id = t.id;
  INSERT INTO syncd.conflicts
  SELECT organization, v.* FROM syncd.version_conflicts(organization, entities, ids) v;

  INSERT INTO syncd.checkpoints AS c
  SELECT DISTINCT ON (r.entity_id) organization, r.entity_id, coalesce(f.meta, w.meta) ->> 'task_id',
    w.meta ->> 'agent', w.meta ->> 'agent_type', (w.meta ->> 'iteration')::bigint,
    w.meta ->> 'phase', w.meta ->> 'status', w.meta ->> 'reason', (w.meta ->> 'tokens')::bigint,
    syncd.parent(w.meta), r.final, r.hash, r.entry_id, r.cloud_seq, coalesce(f.device_id, r.device_id),
    coalesce(f.effective_hlc, r.effective_hlc),
    syncd.at_hlc(coalesce(f.effective_hlc, r.effective_hlc)), syncd.derived(w.body, w.key_id)
  FROM syncd.ranked(organization, entities, ids) r
  JOIN LATERAL (
    SELECT l.meta::jsonb AS meta, l.body, l.key_id FROM syncd.log l
    WHERE l.organization_id = organization AND l.cloud_seq = r.cloud_seq) w ON true
  LEFT JOIN LATERAL (
    SELECT l.meta::jsonb AS meta, l.device_id, l.effective_hlc
    FROM syncd.versions(organization, ARRAY[r.entity], ARRAY[r.entity_id]) l
    ORDER BY l.op = 'create' DESC, l.entry_id::text = l.entity_id DESC, l.effective_hlc, l.entry_id
    LIMIT 1) f ON true
  WHERE r.place = 1 AND r.entity = 'checkpoint'
  ON CONFLICT (organization_id, id) DO UPDATE SET
    task_id = excluded.task_id, agent_id = excluded.agent_id, agent_type = excluded.agent_type,
    iteration = excluded.iteration, phase = excluded.phase, status = excluded.status,
    reason = excluded.reason, tokens = excluded.tokens, parent_id = excluded.parent_id,
    final = excluded.final, hash = excluded.hash, entry_id = excluded.entry_id,
    cloud_seq = excluded.cloud_seq, device_id = excluded.device_id, hlc = excluded.hlc,
    created_at = excluded.created_at, checkpoint_data = excluded.checkpoint_data;

  UPDATE syncd.tasks t SET
    title = coalesce(syncd.derived(l.body, l.key_id) ->> 'title', ''),
    status = coalesce(l.meta::jsonb ->> 'status', ''),
    budget = (l.meta::jsonb ->> 'budget')::bigint,
    retention = coalesce(l.meta::jsonb ->> 'retention', 'default'), entry_id = l.entry_id
  FROM syncd.ranked(organization, entities, ids) r
  JOIN syncd.log l ON l.organization_id = organization AND l.cloud_seq = r.cloud_seq
  WHERE r.place = 1 AND r.entity = 'task'
    AND t.organization_id = organization AND t.id = r.entity_id;

  IF 'message' = ANY (entities) THEN
    PERFORM syncd.settle_messages(organization, entities, ids);
  END IF;
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
  RETURN QUERY SELECT a.device_id, a.agent_id, a.task_id, a.agent_type, a.session_id,
    greatest(0, extract(epoch FROM now - a.seen_at) * 1000)::bigint
  FROM syncd.agents a
  WHERE a.organization_id = organization AND a.device_id <> device
    AND a.seen_at > now - interval '7 days'
  ORDER BY a.seen_at DESC LIMIT 10000;
END $$;

GRANT EXECUTE ON FUNCTION syncd.presence(uuid, uuid, text[], text[], text[], text[], bigint[])
TO syncd_auditor;
