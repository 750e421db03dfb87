-- A push costs the replica less: of fewer statements, each session has less to plan and to keep;
-- versions are ranked once, and conflicts looked for only where there can be any. What a session
-- has planned while the replica was empty stays right when it no longer is.
SET LOCAL ROLE syncd_owner;

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

DROP FUNCTION syncd.parents(uuid, text[]);
DROP FUNCTION syncd.settle(uuid, text[], text[]);
DROP FUNCTION syncd.ranked(uuid, text[], text[]);
DROP FUNCTION syncd.store(uuid, uuid, bigint, bigint[], bigint[], uuid, bigint, bigint, uuid[], text[],
  text[], text[], text[], bigint[], text[], text[], text[], text[], text[], bytea[], bytea[], bigint[],
  bytea[], text[], uuid[], boolean);

-- The organization of whoever logged in: a login belongs to one. Always called in a sub-select,
-- else it runs per row. As text, the name is no reason to go through all organizations' roles; with
-- OFFSET 0 the login's own groups are looked up one by one, whatever is known of all others.
CREATE OR REPLACE FUNCTION syncd.my_org() RETURNS uuid
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE count(DISTINCT g.rolname) WHEN 1 THEN substr(min(g.rolname), 11)::uuid END
  FROM (SELECT m.roleid FROM pg_auth_members m
        WHERE m.member = (SELECT oid FROM pg_roles WHERE rolname = session_user) OFFSET 0) m
  CROSS JOIN LATERAL (SELECT r.rolname FROM pg_roles r WHERE r.oid = m.roleid OFFSET 0) g
  WHERE g.rolname::text ~ '^syncd_org_[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$'
$$;

-- All versions of some entities. The first entry of a generated checkpoint is found by its id.
-- OFFSET 0 has them looked up one by one: without statistics the planner would rather read an
-- organization's whole log. A range in the order of the index is found in no other one, even while
-- the log is empty and all are the same to the planner.
CREATE OR REPLACE FUNCTION syncd.versions(organization uuid, entities text[], ids text[])
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

-- Why a purge is refused, or NULL: a hold keeps every body that is here or may still come.
-- `bodiless` come with it, and have none. The log is asked for single entries, and only of a task
-- that is held: as one join, the organization's whole log would be read for every purge.
CREATE OR REPLACE FUNCTION syncd.held(organization uuid, meta jsonb, bodiless uuid[]) RETURNS text
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

-- Take the bodies away that the purges of a batch name, and those of its entries that purges have
-- named before. All devices come to the same: of several purges the first by id is named.
-- `places` keeps each statement from reading the whole log.
CREATE OR REPLACE FUNCTION syncd.purge(organization uuid, device uuid, first_seq bigint, size integer,
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

-- Store entries of one device that follow each other, and answer for each of them. `given_up` is
-- for entries that the device itself has found it cannot bring here: only their header is kept.
-- `purged` names the purge for checkpoints whose body the device no longer has: it was accepted
-- before, or this device had no replica then.
-- A machine's session is young as a rule, as each has its own: nothing is planned twice in it. Plans
-- of a time when the tables were empty stay in use when they no longer are: where any index on the
-- organization would have done then, ORDER BY names the one that will do.
CREATE OR REPLACE FUNCTION syncd.push(organization uuid, device uuid, first_seq bigint, previous bytea,
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

-- What the log has after a number: whole batches, so that each device's last entry is signed.
-- Bodies that the device has are left out. Empty if the device is up to date; refused if the entry
-- it stands at is not of the batch it names.
CREATE OR REPLACE FUNCTION syncd.pull(organization uuid, device uuid, after bigint, after_batch uuid,
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
