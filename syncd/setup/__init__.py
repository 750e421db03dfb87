"""Making syncd known to an agent's host: hooks, tools, a skill, and for Claude Code a status line.

What others wrote into the same files stays as it is, to the byte; what is installed here can be
taken out again without a trace.
"""
