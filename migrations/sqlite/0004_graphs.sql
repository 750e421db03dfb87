-- The states of a graph's threads: many small entries, which are found by their kind and name.

-- The later versions of a checkpoint. All else is found by its kind: one page less for each.
DROP INDEX log_by_entity;
CREATE INDEX log_by_entity ON log (entity_id) WHERE entity = 'checkpoint' AND entry_id <> entity_id;
