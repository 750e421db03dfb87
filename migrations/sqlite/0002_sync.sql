-- What a device needs to exchange entries with a replica.

-- Why the replica keeps only the header of an entry. NULL for all others.
ALTER TABLE log ADD COLUMN refused TEXT;

-- The entry that says why the body is gone. NULL for all others.
ALTER TABLE log ADD COLUMN purged TEXT;

-- Purge entries that account for a body which is gone here, and are not in this log: a backup may be
-- older than the purge of what it holds.
CREATE TABLE purges (
  entry_id TEXT PRIMARY KEY,
  entry    TEXT NOT NULL
) WITHOUT ROWID;

-- It may have been refused because its id was in use.
DROP INDEX log_by_entry;
CREATE UNIQUE INDEX log_by_entry ON log (entry_id)
  WHERE entry_id <> entity_id AND refused IS NULL;
CREATE INDEX log_refused ON log (entry_id) WHERE refused IS NOT NULL;

-- All versions of an entity. A generated checkpoint's first entry is found through `checkpoints`,
-- so a new checkpoint does not touch this index.
CREATE INDEX log_by_entity ON log (entity_id) WHERE entry_id <> entity_id;
CREATE INDEX log_purged ON log (purged) WHERE purged IS NOT NULL;

-- A later version may name a parent that is newer than the checkpoint itself.
CREATE INDEX checkpoints_changed ON checkpoints (parent_id) WHERE seq <> first_seq;

-- View: versions and branches that lost, and what became of them.
CREATE TABLE conflicts (
  id          TEXT PRIMARY KEY,
  kind        TEXT NOT NULL,
  entity      TEXT NOT NULL,
  entity_id   TEXT NOT NULL,
  bases       TEXT NOT NULL,
  winner      TEXT NOT NULL,
  loser       TEXT NOT NULL,
  detected_at TEXT NOT NULL,
  state       TEXT NOT NULL
) WITHOUT ROWID;
CREATE INDEX conflicts_by_entity ON conflicts (entity_id);

-- What was pulled: the last number of each batch. The newest row is the cursor.
CREATE TABLE batches (
  cloud_seq INTEGER PRIMARY KEY,
  batch     TEXT NOT NULL
);

-- Entries that one side did not take: the replica one of ours, or this device one of another's.
CREATE TABLE quarantine (
  entry_id  TEXT PRIMARY KEY,
  device_id TEXT NOT NULL,
  reason    TEXT NOT NULL,
  since     TEXT NOT NULL,
  state     TEXT NOT NULL,
  content   TEXT NOT NULL
) WITHOUT ROWID;

-- The latest attempts to reach the replica.
CREATE TABLE attempts (
  id     INTEGER PRIMARY KEY,
  at     TEXT    NOT NULL,
  pushed INTEGER NOT NULL,
  pulled INTEGER NOT NULL,
  error  TEXT    NOT NULL
);

-- How far each device's chain is known here; for this device's own, how far it is at the replica.
ALTER TABLE devices ADD COLUMN device_seq INTEGER NOT NULL DEFAULT 0;
ALTER TABLE devices ADD COLUMN chain BLOB NOT NULL
  DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000';

-- This device's highest number in a task, unless the task's newest checkpoint is its own and says
-- a higher one: so a new checkpoint need not touch this table.
CREATE TABLE numbers (
  task_id  TEXT    PRIMARY KEY,
  task_seq INTEGER NOT NULL
) WITHOUT ROWID;
INSERT INTO numbers SELECT id, task_seq FROM tasks WHERE task_seq > 0;
ALTER TABLE tasks DROP COLUMN task_seq;

-- A task is as old as its first entry by the order that all devices agree on.
UPDATE tasks SET created_at = strftime('%Y-%m-%dT%H:%M:%f', first.ms / 1000.0, 'unixepoch') || '+00:00'
FROM (SELECT iif(json_valid(meta), json_extract(meta, '$.task_id'), NULL) AS task_id,
             MIN(effective_hlc) >> 16 AS ms FROM log GROUP BY 1) AS first
WHERE first.task_id = tasks.id;
