"""Whatever one side forgot, both have everything again after the next exchange."""

from __future__ import annotations

from machines import Team, runner, team

__all__ = ["runner", "team"]


def test_two_machines_agree(team: Team) -> None:
    ann, bob, cem = team.three()
    first = ann.create()
    bob.create("u")
    team.settle(ann, bob, cem)
    ann.update(first, "by ann")
    bob.update(first, "by bob")
    team.agree()
    assert len(ann.json("conflicts", "list")) == 1
