-- A push that begins a task looked at the first checkpoints of all tasks.
SET LOCAL ROLE syncd_owner;

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
