-- What agents have to do with each other.

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
