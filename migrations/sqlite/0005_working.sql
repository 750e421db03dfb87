-- What `syncd status` tells of all tasks and agents costs the same however long the history is.

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
