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
