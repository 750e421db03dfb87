"""A simulation: the real sync, store and hand-off code on several devices against a real replica,
and one seed that decides everything else.

`schedule` turns a seed into steps, `world` takes them, `actions` and `faults` say what happens in
each, `invariants` what must hold after every one, `shrink` makes a history that fails short.

    python -m soak 1:100
"""
