"""Chaos with real processes: daemons, agents, commands, PostgreSQL and PgBouncer are killed,
suspended, cut off and left without room, all at once; then everything is proven to be there.

`python -m chaos` or `make chaos`. What a process that is killed cannot show, a machine that loses
its power can: see `tests/test_durability.py`.
"""
