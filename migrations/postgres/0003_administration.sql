-- What administrators ask for: sums that are kept while entries come in, and what devices report of
-- themselves. The queries themselves are in schema/admin.sql.
SET LOCAL ROLE syncd_owner;

ALTER TABLE syncd.devices ADD skew_ms bigint;
ALTER TABLE syncd.devices ALTER skew_ms SET STATISTICS 0;
ALTER TABLE syncd.tasks ADD waits_for text NOT NULL DEFAULT '';
ALTER TABLE syncd.tasks ALTER waits_for SET STATISTICS 0;
CREATE INDEX log_refused ON syncd.log (organization_id, device_id) WHERE refused IS NOT NULL;
CREATE INDEX conflicts_open ON syncd.conflicts (organization_id, entity, entity_id)
  WHERE state = 'open';

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

DO $$
DECLARE
  relation text;
  sampled text;
BEGIN
  FOREACH relation IN ARRAY ARRAY['costs', 'growth'] LOOP
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
GRANT EXECUTE ON FUNCTION syncd.clock() TO syncd_auditor;

-- On Citus, for `admin distribute`: the rule for members without the sub-select, which Citus refuses.
CREATE FUNCTION syncd.policy_for_citus(relation text) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  EXECUTE format('ALTER POLICY own ON syncd.%I
                  USING (organization_id = ANY (ARRAY[syncd.my_org()]))', relation);
END $$;

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

-- Note how much has come in today, and how much was purged.
CREATE FUNCTION syncd.grow(organization uuid, entries bigint, bytes bigint, purged bigint)
RETURNS void
LANGUAGE sql SET search_path = pg_catalog, pg_temp SET enable_seqscan = off AS $$
  INSERT INTO syncd.growth AS g
  VALUES (organization, (syncd.clock() AT TIME ZONE 'UTC')::date, entries, bytes, purged)
  ON CONFLICT (organization_id, day) DO UPDATE SET entries = g.entries + excluded.entries,
    bytes = g.bytes + excluded.bytes, purged = g.purged + excluded.purged
$$;

-- Bring the views of some entities in line with the log.
CREATE OR REPLACE FUNCTION syncd.settle(organization uuid, entities text[], ids text[]) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
BEGIN
  -- Of most kinds there is nothing in any view, and nothing to choose.
  IF NOT entities && ARRAY['checkpoint', 'task', 'link', 'choice', 'purge', 'message'] THEN
    RETURN;
  END IF;
  DELETE FROM syncd.conflicts c USING unnest(entities, ids) AS t(entity, id)
  WHERE c.organization_id = organization AND c.kind = 'version' AND c.entity = t.entity
    AND c.entity_id = t.id;
  INSERT INTO syncd.conflicts
  SELECT organization, v.* FROM syncd.version_conflicts(organization, entities, ids) v;

  IF 'checkpoint' = ANY (entities) THEN
    -- What these checkpoints have cost so far is taken back, and what they cost now is added.
    WITH before AS MATERIALIZED (
      SELECT c.id, c.task_id, c.agent_id, c.agent_type, c.iteration, c.tokens, c.hlc,
        syncd.seconds(c.checkpoint_data) AS seconds
      FROM syncd.checkpoints c
      WHERE c.organization_id = organization AND c.id = ANY (ids)
    ), after AS (
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
        created_at = excluded.created_at, checkpoint_data = excluded.checkpoint_data
      RETURNING c.id, c.task_id, c.agent_id, c.agent_type, c.iteration, c.tokens, c.hlc,
        syncd.seconds(c.checkpoint_data) AS seconds
    )
    INSERT INTO syncd.costs AS k
    SELECT organization, d.task_id, syncd.day_of(d.hlc), syncd.worker(d.agent_id, d.agent_type),
      d.agent_id, d.agent_type, sum(d.sign), coalesce(max(d.iteration) FILTER (WHERE d.sign > 0), 0),
      sum(d.sign * d.tokens), sum(d.sign * d.seconds), min(d.hlc), max(d.hlc)
    FROM (
      -- A purge takes the content away, not the time that was spent.
      SELECT 1 AS sign, a.task_id, a.agent_id, a.agent_type, a.iteration, a.tokens::numeric, a.hlc,
        coalesce(a.seconds, b.seconds, 0) AS seconds
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
      last_hlc = greatest(k.last_hlc, excluded.last_hlc);
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
    JOIN syncd.log l ON l.organization_id = organization AND l.cloud_seq = r.cloud_seq
    WHERE r.place = 1 AND r.entity = 'task'
      AND t.organization_id = organization AND t.id = r.entity_id;
  END IF;

  IF 'message' = ANY (entities) THEN
    PERFORM syncd.settle_messages(organization, entities, ids);
  END IF;
END $$;

-- Take the bodies away that the purges of a batch name, and those of its entries that purges have
-- named before. All devices come to the same: of several purges the first by id is named.
CREATE OR REPLACE FUNCTION syncd.purge(organization uuid, device uuid, first_seq bigint, size integer,
                            stamp uuid) RETURNS void
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off AS $$
DECLARE
  gone text[];
  freed bigint;
BEGIN
  INSERT INTO syncd.awaited
  SELECT organization, n.id, l.entry_id, l.meta::jsonb ->> 'task_id'
  FROM syncd.log l CROSS JOIN LATERAL unnest(syncd.named(l.meta::jsonb)) AS n(id)
  WHERE l.organization_id = organization AND l.device_id = device
    AND l.device_seq BETWEEN first_seq AND first_seq + size - 1 AND l.batch = stamp
    AND l.entity = 'purge' AND l.refused IS NULL
  ON CONFLICT DO NOTHING;
  WITH due AS (
    DELETE FROM syncd.awaited a USING syncd.log l
    WHERE a.organization_id = organization AND l.organization_id = organization
      AND l.entry_id = a.entry_id AND l.refused IS NULL
    RETURNING a.entry_id, a.task_id, a.purge_id
  ), sizes AS MATERIALIZED (
    SELECT d.entry_id, octet_length(l.body) AS bytes
    FROM (SELECT DISTINCT due.entry_id FROM due) d
    JOIN syncd.log l ON l.organization_id = organization AND l.entry_id = d.entry_id
      AND l.refused IS NULL
  ), purged AS (
    UPDATE syncd.log l SET body = NULL, purged_by = least(l.purged_by, d.purge_id)
    FROM (SELECT due.entry_id, due.task_id, min(due.purge_id::text)::uuid AS purge_id
          FROM due GROUP BY 1, 2) d
    WHERE l.organization_id = organization AND l.entry_id = d.entry_id AND l.refused IS NULL
      AND l.entity = 'checkpoint' AND l.meta::jsonb ->> 'task_id' = d.task_id
    RETURNING l.entry_id, l.entity_id
  )
  SELECT array_agg(DISTINCT p.entity_id), coalesce(sum(s.bytes), 0) INTO gone, freed
  FROM purged p JOIN sizes s USING (entry_id);
  IF gone IS NOT NULL THEN
    PERFORM syncd.grow(organization, 0, 0, freed);
    PERFORM syncd.settle(organization, array_fill('checkpoint'::text, ARRAY[cardinality(gone)]),
                         gone);
  END IF;
END $$;

-- Store entries of one device that follow each other, and answer for each of them. `given_up` is
-- for entries that the device itself has found it cannot bring here: only their header is kept.
-- `purged` names the purge for checkpoints whose body the device no longer has: it was accepted
-- before, or this device had no replica then.
CREATE OR REPLACE FUNCTION syncd.push(organization uuid, device uuid, first_seq bigint, previous bytea,
  entry_ids uuid[], entities text[], ids text[], ops text[], bases text[], hlcs bigint[],
  actors text[], ats text[], key_ids text[], metas text[], hashes text[], chains bytea[],
  signatures bytea[], effective bigint[], bodies bytea[], given_up text[], purged uuid[])
RETURNS TABLE (device_seq bigint, verdict text, cloud_seq bigint, batch uuid,
               effective_hlc bigint, reason text)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
DECLARE
  size integer := cardinality(entry_ids);
  volume bigint;
  last_seq bigint;
  body_max integer;
  last_known bytea;
  known bigint[];
  free bigint[] := '{}';
  refusals text[];
  stamp uuid := gen_random_uuid();
  latest bigint := floor(extract(epoch FROM syncd.clock()) * 1000)::bigint + 300000 << 16;
BEGIN
  PERFORM syncd.require(organization, true);
  PERFORM syncd.require_device(organization, device, true);
  IF size IS NULL OR size NOT BETWEEN 1 AND 1000 OR first_seq < 1 THEN
    RAISE EXCEPTION 'a batch has 1 to 1000 entries' USING ERRCODE = 'SY004';
  END IF;
  IF (SELECT count(*) FROM unnest(ARRAY[array_dims(entry_ids), array_dims(entities),
        array_dims(ids), array_dims(ops), array_dims(bases), array_dims(hlcs), array_dims(actors),
        array_dims(ats), array_dims(key_ids), array_dims(metas), array_dims(hashes),
        array_dims(chains), array_dims(signatures), array_dims(effective), array_dims(bodies),
        array_dims(given_up), array_dims(purged)]) AS c(dims)
      WHERE dims = format('[1:%s]', size)) <> 17 THEN
    RAISE EXCEPTION 'the columns of a batch have the same length' USING ERRCODE = 'SY004';
  END IF;
  volume := coalesce((SELECT sum(octet_length(b)) FROM unnest(bodies) AS b), 0)
    + (SELECT sum(octet_length(t)) FROM unnest(entities || ids || ops || bases || actors || ats
         || key_ids || metas || hashes) AS t);
  IF volume > 32000000 THEN
    RAISE EXCEPTION 'a batch has at most 32 MB' USING ERRCODE = 'SY004';
  END IF;

  -- From here to the commit, nobody else numbers entries of this organization.
  SELECT o.cloud_seq, o.body_limit INTO STRICT last_seq, body_max FROM syncd.organizations o
  WHERE o.organization_id = organization FOR UPDATE;
  last_known := CASE WHEN first_seq = 1 THEN decode(repeat('00', 32), 'hex') ELSE (
    SELECT l.chain FROM syncd.log l WHERE l.organization_id = organization
    AND l.device_id = device AND l.device_seq = first_seq - 1) END;
  known := ARRAY(SELECT l.device_seq - first_seq + 1 FROM syncd.log l
                 WHERE l.organization_id = organization AND l.device_id = device
                   AND l.device_seq BETWEEN first_seq AND first_seq + size - 1);
  IF previous IS NULL OR previous IS DISTINCT FROM last_known
     OR EXISTS (SELECT FROM syncd.log l WHERE l.organization_id = organization
                AND l.device_id = device AND l.chain <> chains[l.device_seq - first_seq + 1]
                AND l.device_seq BETWEEN first_seq AND first_seq + size - 1) THEN
    RAISE EXCEPTION 'these entries do not continue what is known of this device'
      USING ERRCODE = 'SY003';
  END IF;

  -- What the log once had and lost gets its numbers back, so that they stay contiguous.
  IF cardinality(known) = 0 AND first_seq <= (SELECT d.device_seq FROM syncd.devices d
      WHERE d.organization_id = organization AND d.device_id = device) THEN
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

  SELECT array_agg(CASE
    WHEN i.given_up IS NOT NULL THEN left(i.given_up, 1000)
    WHEN i.body IS NULL AND (i.purged IS NULL OR i.entity <> 'checkpoint') THEN 'it has no body'
    WHEN octet_length(i.body) > body_max THEN
      format('its body has %s bytes, at most %s are allowed', octet_length(i.body), body_max)
    WHEN greatest(octet_length(i.meta), octet_length(i.bases), octet_length(i.actor),
                  octet_length(i.hash), octet_length(i.at), octet_length(i.key_id)) > 65536 THEN
      'its header has a field of more than 65536 bytes'
    WHEN octet_length(i.chain) <> 32 OR i.chain <> sha256(i.previous || syncd.header(i.entry_id,
        device, first_seq + i.n - 1, i.entity, i.id, i.op, i.bases, i.hlc, i.actor, i.at,
        i.key_id, i.meta) || convert_to(i.hash, 'UTF8')) THEN
      'its header does not match its chain value'
    WHEN i.key_id = '' AND i.hash <> encode(sha256(i.body), 'hex') THEN
      'its body does not match its hash'
    END) INTO refusals
  FROM (
    -- Unnested in the select list: in FROM, each array would be copied first.
    SELECT generate_series(1, size) AS n, unnest(entry_ids) AS entry_id,
      unnest(entities) AS entity, unnest(ids) AS id, unnest(ops) AS op, unnest(push.bases) AS bases,
      unnest(hlcs) AS hlc, unnest(actors) AS actor, unnest(ats) AS at, unnest(key_ids) AS key_id,
      unnest(metas) AS meta, unnest(hashes) AS hash, unnest(chains) AS chain,
      unnest(push.previous || chains[:size - 1]) AS previous, unnest(bodies) AS body,
      unnest(push.given_up) AS given_up, unnest(push.purged) AS purged) AS i;
  BEGIN
    last_seq := syncd.store(organization, device, first_seq, known, free, stamp, last_seq, latest, entry_ids,
      entities, ids, ops, bases, hlcs, actors, ats, key_ids, metas, hashes, chains, signatures,
      effective, bodies, refusals, purged, false);
  EXCEPTION WHEN data_exception OR unique_violation OR not_null_violation
              OR program_limit_exceeded THEN
    SELECT array_agg(coalesce(i.known, i.defect) ORDER BY i.n) INTO refusals
    FROM unnest(refusals, syncd.defects(organization, entry_ids, entities, ids, ops, bases, metas,
                                        key_ids, bodies)) WITH ORDINALITY AS i(known, defect, n);
    last_seq := syncd.store(organization, device, first_seq, known, free, stamp, last_seq, latest, entry_ids,
      entities, ids, ops, bases, hlcs, actors, ats, key_ids, metas, hashes, chains, signatures,
      effective, bodies, refusals, purged, true);
  END;
  IF 'purge' = ANY (entities) OR EXISTS (
      SELECT FROM syncd.awaited a
      WHERE a.organization_id = organization AND entry_ids @> ARRAY[a.entry_id]) THEN
    PERFORM syncd.purge(organization, device, first_seq, size, stamp);
  END IF;
  UPDATE syncd.organizations o SET cloud_seq = last_seq WHERE o.organization_id = organization;
  IF cardinality(known) < size THEN
    PERFORM syncd.grow(organization, size - cardinality(known),
                       volume * (size - cardinality(known)) / size, 0);
  END IF;
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

-- Write what is new of a checked batch to the log and the views; returns the last number used. Only
-- if `careful` does it take bodies that JSONB cannot hold as they are, which costs time.
CREATE OR REPLACE FUNCTION syncd.store(organization uuid, device uuid, first_seq bigint, known bigint[],
  free bigint[],
  stamp uuid, last_seq bigint, latest bigint, entry_ids uuid[], entities text[], ids text[], ops text[],
  bases text[], hlcs bigint[], actors text[], ats text[], key_ids text[], metas text[],
  hashes text[], chains bytea[], signatures bytea[], effective bigint[], bodies bytea[],
  refusals text[], purged uuid[], careful boolean) RETURNS bigint
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
  IF NOT careful AND 'purge' = ANY (entities) AND EXISTS (
      SELECT FROM unnest(entities, metas, refusals) AS i(entity, meta, refused)
      WHERE i.entity = 'purge' AND i.refused IS NULL AND syncd.held(organization, i.meta::jsonb,
        ARRAY(SELECT b.id FROM unnest(entry_ids, bodies) AS b(id, body) WHERE b.body IS NULL))
        IS NOT NULL) THEN
    RAISE EXCEPTION 'a task is on hold' USING ERRCODE = 'data_exception';
  END IF;
  INSERT INTO syncd.log
  SELECT organization, coalesce(free[i.n], last_seq + i.n - cardinality(free)
      - (SELECT count(*) FROM unnest(known) AS k WHERE k < i.n)),
    stamp, i.entry_id, device, first_seq + i.n - 1, i.entity, i.id, i.op, i.bases, i.hlc, i.actor,
    i.at, i.key_id, i.meta, i.hash, i.chain, i.signature, least(i.hlc, i.claimed, latest),
    received, i.refused, CASE WHEN i.refused IS NULL THEN i.body END,
    CASE WHEN i.refused IS NULL AND i.body IS NULL THEN i.purged END
  FROM (
    SELECT generate_series(1, size) AS n, unnest(entry_ids) AS entry_id,
      unnest(entities) AS entity, unnest(ids) AS id, unnest(ops) AS op, unnest(store.bases) AS bases,
      unnest(hlcs) AS hlc, unnest(actors) AS actor, unnest(ats) AS at, unnest(key_ids) AS key_id,
      unnest(metas) AS meta, unnest(hashes) AS hash, unnest(chains) AS chain,
      unnest(signatures) AS signature, unnest(effective) AS claimed, unnest(bodies) AS body,
      unnest(refusals) AS refused, unnest(store.purged) AS purged) AS i
  WHERE i.n <> ALL (known);
  GET DIAGNOSTICS written = ROW_COUNT;

  WITH incoming AS MATERIALIZED (
    SELECT i.*, i.meta_text::jsonb AS meta, least(i.hlc, i.claimed, latest) AS effective_hlc
    FROM (
      SELECT generate_series(1, size) AS n, unnest(entry_ids) AS entry_id,
        unnest(entities) AS entity, unnest(ids) AS id, unnest(ops) AS op,
        unnest(store.bases) AS bases, unnest(hlcs) AS hlc, unnest(key_ids) AS key_id,
        unnest(metas) AS meta_text, unnest(hashes) AS hash, unnest(effective) AS claimed,
        unnest(bodies) AS body, unnest(refusals) AS refused) AS i
    WHERE i.refused IS NULL AND i.n <> ALL (known)
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
      i.entry_id, coalesce(free[i.n], last_seq + i.n - cardinality(free)
      - (SELECT count(*) FROM unnest(known) AS k WHERE k < i.n)), device,
      i.effective_hlc, syncd.at_hlc(i.effective_hlc),
      CASE WHEN careful THEN syncd.derived(i.body, i.key_id)
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
  SELECT count(syncd.flaw(i.entity, i.id, i.op, i.bases, i.meta, i.op = 'create')),
    array_agg(CASE i.entity WHEN 'checkpoint' THEN syncd.parent(i.meta)
                            WHEN 'choice' THEN i.meta ->> 'fork' END),
    (SELECT array_agg(t.entity) FROM touched t), (SELECT array_agg(t.id) FROM touched t)
  INTO flawed, parents, touched_entities, touched_ids
  FROM incoming i;
  IF flawed > 0 THEN
    RAISE EXCEPTION 'an entry has a flaw' USING ERRCODE = 'data_exception';
  END IF;
  IF touched_ids IS NOT NULL THEN
    -- Another version may have another parent: the branches of both are looked at.
    moved := syncd.parents(organization, touched_ids);
    PERFORM syncd.settle(organization, touched_entities, touched_ids);
    moved := moved || syncd.parents(organization, touched_ids);
  END IF;
  PERFORM syncd.settle_forks(organization, parents, touched_ids, moved);
  RETURN last_seq + written - cardinality(free);
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
CREATE OR REPLACE FUNCTION syncd.presence(organization uuid, device uuid, agents text[], tasks text[],
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

GRANT EXECUTE ON FUNCTION syncd.report_skew(uuid, uuid, bigint, bigint, bigint) TO syncd_auditor;

-- What was there before.
INSERT INTO syncd.costs
SELECT c.organization_id, c.task_id, syncd.day_of(c.hlc), syncd.worker(c.agent_id, c.agent_type),
  c.agent_id, c.agent_type, count(*), max(c.iteration), sum(c.tokens),
  coalesce(sum(syncd.seconds(c.checkpoint_data)), 0), min(c.hlc), max(c.hlc)
FROM syncd.checkpoints c
GROUP BY c.organization_id, c.task_id, syncd.day_of(c.hlc), c.agent_id, c.agent_type;

INSERT INTO syncd.growth
SELECT l.organization_id, (l.received_at AT TIME ZONE 'UTC')::date, count(*),
  sum(coalesce(octet_length(l.body), 0) + octet_length(l.entity) + octet_length(l.entity_id)
      + octet_length(l.op) + octet_length(l.bases) + octet_length(l.actor) + octet_length(l.at)
      + octet_length(l.key_id) + octet_length(l.meta) + octet_length(l.hash))
FROM syncd.log l GROUP BY 1, 2;

UPDATE syncd.tasks t
SET waits_for = left(coalesce(syncd.derived(l.body, l.key_id) #>> '{escalation,reason}',
                              syncd.derived(l.body, l.key_id) #>> '{deferred,reason}', ''), 2000)
FROM syncd.log l
WHERE l.organization_id = t.organization_id AND l.entry_id = t.entry_id AND l.refused IS NULL
  AND t.entry_id IS NOT NULL;

ANALYZE syncd.log, syncd.tasks, syncd.conflicts, syncd.messages, syncd.costs, syncd.checkpoints;

-- What a push costs does not grow with the organizations, an organization's logins, its tasks or its
-- log.
SET LOCAL ROLE syncd_owner;

-- The organization of whoever logged in: a login belongs to one. Always called in a sub-select,
-- else it runs per row. As text, the name is no reason to go through all organizations' roles.
CREATE OR REPLACE FUNCTION syncd.my_org() RETURNS uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE count(DISTINCT g.rolname) WHEN 1 THEN substr(min(g.rolname), 11)::uuid END
  FROM pg_auth_members m JOIN pg_roles g ON g.oid = m.roleid
  WHERE m.member = (SELECT oid FROM pg_roles WHERE rolname = session_user)
    AND g.rolname::text ~ '^syncd_org_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
$$;

-- Refuses whoever is no member, and whoever may only read where he would write. Says the same for
-- an organization that does not exist as for another's.
-- With the collation of its column, the login is found in the index: a name has another one.
CREATE OR REPLACE FUNCTION syncd.require(organization uuid, writing boolean) RETURNS void
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

-- All versions of some entities. The first entry of a generated checkpoint is found by its id.
-- OFFSET 0 has them looked up one by one: without statistics the planner would rather read an
-- organization's whole log.
CREATE OR REPLACE FUNCTION syncd.versions(organization uuid, entities text[], ids text[])
RETURNS SETOF syncd.log
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp
SET enable_seqscan = off SET jit = off SET work_mem = '64MB' AS $$
  SELECT l.* FROM unnest(entities, ids) AS t(entity, id) CROSS JOIN LATERAL (
    SELECT * FROM syncd.log l WHERE l.organization_id = organization AND l.entity = t.entity
      AND l.entity_id = t.id AND l.entity_id <> l.entry_id::text AND l.refused IS NULL OFFSET 0) l
  UNION ALL
  SELECT l.* FROM unnest(entities, ids) AS t(entity, id) CROSS JOIN LATERAL (
    SELECT * FROM syncd.log l WHERE l.organization_id = organization AND l.refused IS NULL
      AND l.entry_id = CASE WHEN t.id ~ '^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
                            THEN t.id::uuid END
      AND l.entity = t.entity AND l.entity_id = t.id OFFSET 0) l
$$;

-- Branches: checkpoints of one task with the same parent from different devices. The newest goes
-- on; each other is a conflict until somebody has chosen.
-- `parents` have new children; `changed` are checkpoints that were there before, `moved` their
-- parents before and now.
CREATE OR REPLACE FUNCTION syncd.settle_forks(organization uuid, parents text[], changed text[],
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
    SELECT c.parent_id FROM syncd.checkpoints c
    WHERE c.organization_id = organization AND c.parent_id = ANY (parents || moved)
    GROUP BY c.task_id, c.parent_id HAVING min(c.device_id::text) <> max(c.device_id::text)) f;
  IF forked IS NULL AND changed IS NULL THEN
    RETURN;
  END IF;
  DELETE FROM syncd.conflicts c
  WHERE c.organization_id = organization AND c.kind = 'fork' AND c.entity = 'checkpoint'
    AND c.entity_id = ANY (changed || ARRAY(
      SELECT k.id FROM syncd.checkpoints k
      WHERE k.organization_id = organization AND k.parent_id = ANY (forked || moved)));
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
      FROM syncd.checkpoints ch
      JOIN LATERAL (
        SELECT l.entry_id, l.at FROM syncd.versions(organization, ARRAY['checkpoint'], ARRAY[ch.id]) l
        ORDER BY l.op = 'create' DESC, l.entry_id::text = l.entity_id DESC, l.effective_hlc,
          l.entry_id LIMIT 1) f ON true
      WHERE ch.organization_id = organization AND ch.parent_id = ANY (forked)
    ) b
    WINDOW branch AS (PARTITION BY b.task_id, b.parent_id),
      newest AS (PARTITION BY b.task_id, b.parent_id ORDER BY b.hlc DESC, b.id COLLATE "C" DESC)
  ) k
  WHERE k.forked AND k.first_entry <> k.winner;
END $$;

-- A machine's session is young as a rule, as each has its own: nothing is planned twice in it.
ALTER FUNCTION syncd.push SET plan_cache_mode = force_generic_plan;
