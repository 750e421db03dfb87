"""How far one PostgreSQL goes: many devices at once, long histories, and what each costs there.

Devices are simulated, what they do is not: each has a login of its own, entries that are chained
and signed, and the client's own code to send and to examine them.
"""
