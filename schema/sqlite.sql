-- The local database, as it is today. migrations/sqlite/ leads here step by step.

-- The log: every change, immutable. `seq` is the local, monotonic cursor.
-- As few indexes as can be: each one costs every write a page. A device's newest entry is the
-- last row or close to it, so (device_id, device_seq) needs none.
CREATE TABLE log (
  seq           INTEGER PRIMARY KEY,
  entry_id      TEXT    NOT NULL,
  device_id     TEXT    NOT NULL,
  device_seq    INTEGER NOT NULL,
  entity        TEXT    NOT NULL,
  entity_id     TEXT    NOT NULL,
  op            TEXT    NOT NULL,
  bases         TEXT    NOT NULL,
  hlc           INTEGER NOT NULL,
  actor         TEXT    NOT NULL,
  at            TEXT    NOT NULL,
  key_id        TEXT    NOT NULL,
  meta          TEXT    NOT NULL,
  hash          TEXT    NOT NULL,
  previous      BLOB    NOT NULL,
  chain         BLOB    NOT NULL,
  signature     BLOB,
  effective_hlc INTEGER NOT NULL,
  cloud_seq     INTEGER,
  batch         TEXT,
  body          BLOB    NOT NULL,
  -- Why the replica keeps only the header of an entry. NULL for all others.
  refused       TEXT,
  -- The entry that says why the body is gone. NULL for all others.
  purged        TEXT
);

-- A new checkpoint's entry carries the checkpoint's own id, so `checkpoints` finds it already.
-- What the replica refused may have been refused because its id was in use.
CREATE UNIQUE INDEX log_by_entry ON log (entry_id)
  WHERE entry_id <> entity_id AND refused IS NULL;
CREATE INDEX log_refused ON log (entry_id) WHERE refused IS NOT NULL;
CREATE INDEX log_purged ON log (purged) WHERE purged IS NOT NULL;

-- Purge entries that account for a body which is gone here, and are not in this log: a backup may be
-- older than the purge of what it holds.
CREATE TABLE purges (
  entry_id TEXT PRIMARY KEY,
  entry    TEXT NOT NULL
) WITHOUT ROWID;

-- View: the current version of each checkpoint, `seq` its entry. From `first_seq` on, the columns
-- are the first version's. A small row: every byte here is written with every checkpoint.
CREATE TABLE checkpoints (
  id         TEXT    PRIMARY KEY,
  task_id    TEXT    NOT NULL,
  agent_id   TEXT    NOT NULL,
  agent_type TEXT    NOT NULL,
  iteration  INTEGER NOT NULL,
  phase      TEXT    NOT NULL,
  status     TEXT    NOT NULL,
  reason     TEXT    NOT NULL,
  tokens     INTEGER NOT NULL,
  parent_id  TEXT    NOT NULL,
  final      INTEGER NOT NULL,
  seq        INTEGER NOT NULL,
  first_seq  INTEGER NOT NULL,
  device_id  TEXT    NOT NULL,
  task_seq   INTEGER NOT NULL,
  hlc        INTEGER NOT NULL,
  created_at TEXT    NOT NULL
) WITHOUT ROWID;

CREATE INDEX checkpoints_by_task ON checkpoints (task_id, hlc);
-- A later version may name a parent that is newer than the checkpoint itself.
CREATE INDEX checkpoints_changed ON checkpoints (parent_id) WHERE seq <> first_seq;

-- View: tasks, whether added by name or met first in a checkpoint.
CREATE TABLE tasks (
  id         TEXT    PRIMARY KEY,
  status     TEXT    NOT NULL,
  budget     INTEGER,
  retention  TEXT    NOT NULL,
  revision   TEXT    NOT NULL,
  seq        INTEGER NOT NULL,
  created_at TEXT    NOT NULL
) WITHOUT ROWID;

-- View: who worked on what. It stands in for an index by agent, and is written only when an
-- agent is new to a task.
CREATE TABLE participants (
  agent_id TEXT NOT NULL,
  task_id  TEXT NOT NULL,
  PRIMARY KEY (agent_id, task_id)
) WITHOUT ROWID;

-- View: links set after the fact, beside the parent each checkpoint names itself.
CREATE TABLE links (
  child_id  TEXT    NOT NULL,
  parent_id TEXT    NOT NULL,
  hlc       INTEGER NOT NULL,
  revision  TEXT    NOT NULL,
  seq       INTEGER NOT NULL,
  PRIMARY KEY (child_id, parent_id)
) WITHOUT ROWID;

-- The devices whose signatures are known here, this one included. How far each device's chain is
-- known here; for this device's own, how far it is at the replica.
CREATE TABLE devices (
  device_id  TEXT PRIMARY KEY,
  public_key BLOB NOT NULL,
  added_at   TEXT NOT NULL,
  device_seq INTEGER NOT NULL DEFAULT 0,
  chain      BLOB NOT NULL
    DEFAULT x'0000000000000000000000000000000000000000000000000000000000000000'
) WITHOUT ROWID;

-- Damage met while reading: kept until an audit finds the entry sound again.
CREATE TABLE problems (
  entry_id  TEXT NOT NULL,
  problem   TEXT NOT NULL,
  found_at  TEXT NOT NULL,
  PRIMARY KEY (entry_id, problem)
) WITHOUT ROWID;

CREATE TABLE state (
  name  TEXT PRIMARY KEY,
  value TEXT NOT NULL
) WITHOUT ROWID;

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

-- This device's highest number in a task, unless the task's newest checkpoint is its own and says
-- a higher one: so a new checkpoint need not touch this table.
CREATE TABLE numbers (
  task_id  TEXT    PRIMARY KEY,
  task_seq INTEGER NOT NULL
) WITHOUT ROWID;

-- All that is no checkpoint, by kind; few enough, and no cost to those who write checkpoints.
CREATE INDEX log_by_kind ON log (entity, entity_id) WHERE entity <> 'checkpoint';

-- View: who is fenced off from a task, between two readings of the clock: what he writes there is
-- kept as a branch.
CREATE TABLE fences (
  task_id   TEXT    NOT NULL,
  agent_id  TEXT    NOT NULL,
  device_id TEXT    NOT NULL,
  since     INTEGER NOT NULL,
  until     INTEGER NOT NULL,
  PRIMARY KEY (task_id, agent_id, device_id, since)
) WITHOUT ROWID;

-- When agents gave their last sign of life, by this device's clock; those of other devices as the
-- replica has told. State, not history.
CREATE TABLE presence (
  device_id  TEXT    NOT NULL,
  agent_id   TEXT    NOT NULL,
  task_id    TEXT    NOT NULL,
  agent_type TEXT    NOT NULL,
  session_id TEXT    NOT NULL,
  seen_ms    INTEGER NOT NULL,
  PRIMARY KEY (device_id, agent_id, task_id)
) WITHOUT ROWID;

-- Files that checkpoints were read from: under which name each was first met, what it held when it
-- was read last, and what was wrong with it then.
CREATE TABLE sources (
  path    TEXT    PRIMARY KEY,
  origin  TEXT    NOT NULL,
  digest  TEXT    NOT NULL,
  line    INTEGER NOT NULL,
  problem TEXT    NOT NULL,
  at      TEXT    NOT NULL
) WITHOUT ROWID;

-- The later versions of a checkpoint. All else is found by its kind: one page less for each.
CREATE INDEX log_by_entity ON log (entity_id) WHERE entity = 'checkpoint' AND entry_id <> entity_id;

-- Who was at work on each task, as of the tally in `state`; nobody has no name. `look` says when it
-- matters: 0 if nothing is expected of the agent, 1 if its newest sign of life tells, 2 always.
-- Written by whoever asks, not with every checkpoint.
CREATE TABLE working (
  task_id    TEXT    PRIMARY KEY,
  device_id  TEXT    NOT NULL,
  agent_id   TEXT    NOT NULL,
  agent_type TEXT    NOT NULL,
  hlc        INTEGER NOT NULL,
  look       INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX working_by_agent ON working (look, device_id, agent_id, hlc);
