"""What happens at the events of an agent's host: Claude Code, Codex, OpenCode.

An event is read, and what it says of the work goes to the journal of its session, a file to which
each hook adds one line and which nobody has to wait for. Now and then, and whenever the host stops,
compacts or ends, the journal is folded into a checkpoint. Nothing here may disturb the host.
"""
