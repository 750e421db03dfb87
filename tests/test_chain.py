"""The chain of checkpoints as it is drawn: columns, lines, and what is left out of a long one."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from contextlib import closing
from pathlib import Path

import pytest
import showcase

from syncd import CheckpointService
from syncd.lineage import Knot, Row, laid_out

SYNCD = str(Path(sys.executable).with_name("syncd"))


def knots(text: str) -> list[Knot]:
    """`c>b b>a a>`: newest first, each with its parent."""
    pairs = [word.split(">") for word in text.split()]
    return [
        Knot(name, parent, "ann", "", "testing", "in_progress", 1, 0, "d", "2026-01-01T00:00:00Z")
        for name, parent in pairs
    ]


def columns(text: str) -> dict[str, int]:
    return {row.knot.id: row.column for row in laid_out(knots(text))}


# --- where everything stands ----------------------------------------------------------------------


def test_a_line_of_parents_is_one_column() -> None:
    rows = laid_out(knots("c>b b>a a>"))
    assert [row.column for row in rows] == [0, 0, 0]
    assert [row.head for row in rows] == [True, False, False]
    assert [row.below for row in rows] == [(0,), (0,), ()]


def test_branches_stand_beside_each_other_until_they_meet() -> None:
    rows = {row.knot.id: row for row in laid_out(knots("d>b c>b b>a a>"))}
    assert {name: row.column for name, row in rows.items()} == {"d": 0, "c": 1, "b": 0, "a": 0}
    assert rows["b"].joining == (1,)
    assert rows["b"].children == 2
    assert rows["a"].above == (0,)


def test_a_column_that_is_free_is_used_again() -> None:
    assert columns("f>e g>e e>c d>c c>a b>a a>") == {
        "f": 0, "g": 1, "e": 0, "d": 1, "c": 0, "b": 1, "a": 0,
    }  # fmt: skip


def test_three_branches_meet_at_once() -> None:
    (joint,) = [row for row in laid_out(knots("d>a c>a b>a a>")) if row.joining]
    assert joint.joining == (1, 2)
    assert joint.column == 0


def test_a_parent_that_is_not_here_leaves_its_line_open() -> None:
    rows = laid_out(knots("b>gone a>also"))
    assert [row.below for row in rows] == [(0,), (0, 1)]


@pytest.mark.parametrize("text", ["a>a", "b>a a>b", "a>b b>"])
def test_links_that_lead_in_a_circle_or_upwards_draw_no_line_for_ever(text: str) -> None:
    rows: list[Row] = laid_out(knots(text))
    assert len(rows) == len(text.split())
    assert rows[-1].below == ()


# --- in the terminal ------------------------------------------------------------------------------


def terminal(width: int, *words: str, **settings: str) -> list[str]:
    """What a user sees in a window so wide, without its colours."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    environment = {**os.environ, "NO_COLOR": "1", "PYTHONUTF8": "1", **settings}
    with subprocess.Popen([SYNCD, *words], stdin=theirs, stdout=theirs, env=environment) as process:
        os.close(theirs)
        shown = b""
        while piece := _read(ours):
            shown += piece
    os.close(ours)
    assert process.returncode == 0
    return [_plain(line) for line in shown.decode().splitlines()]


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, 65536)
    except OSError:  # the other side is closed
        return b""


def _plain(line: str) -> str:
    import click

    return click.unstyle(line)


@pytest.fixture
def forked(home: Path) -> CheckpointService:
    """200 in a row, of which one began a branch, and one is damaged."""
    with closing(CheckpointService(home=home)) as service:
        names = []
        with service.node.store.transaction():
            for number in range(200):
                made = service.create_checkpoint("long", "ann" if number % 90 else "bob")
                names.append(made.metadata.checkpoint_id)
            service.create_checkpoint("long", "a-branch", parent=names[100])
            for number in range(10):
                service.create_checkpoint(
                    "long", "newest", parent=names[-1] if not number else None
                )
        showcase.damage(service.node, names[101])
        return service


def test_a_long_chain_fits_a_screen_and_shows_its_fork(forked: CheckpointService) -> None:
    lines = terminal(80, "task", "show", "long")
    assert max(map(len, lines)) <= 80
    assert len(lines) < 60
    drawn = "\n".join(lines)
    assert "◉" in drawn
    assert "├─╯" in drawn
    assert "2 branches" in drawn
    assert "damaged" in drawn
    assert drawn.count("┆") >= 2
    left_out = sum(int(number) for number in re.findall(r"┆ (\d+) checkpoints by", drawn))
    assert left_out + len(re.findall(r"^(?:│ )*[●◉✗] ", drawn, re.M)) == 211, (
        "all are accounted for"
    )


def test_where_the_terminal_knows_no_unicode_plain_signs_do(forked: CheckpointService) -> None:
    done = subprocess.run(
        [SYNCD, "task", "show", "long"], capture_output=True, check=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
    )  # fmt: skip
    drawn = done.stdout.decode("ascii")
    assert "|-'" in drawn
    assert "\nO " in drawn
    assert "\nx " in drawn or "| x " in drawn
    assert "01a" in drawn.split("\nO ")[1][:3], "in a pipe ids are whole"
    assert len(drawn.split("\nO ")[1].split()[0]) == 36


def test_the_document_has_no_drawing(forked: CheckpointService) -> None:
    done = subprocess.run(
        [SYNCD, "task", "show", "long", "--json"], capture_output=True, check=True, text=True
    )
    assert json.loads(done.stdout)["cost"]["checkpoints"] == 211
    assert "●" not in done.stdout


def test_a_task_without_checkpoints_has_no_chain(home: Path) -> None:
    subprocess.run([SYNCD, "task", "add", "empty"], capture_output=True, check=True)
    done = subprocess.run([SYNCD, "task", "show", "empty"], capture_output=True, check=True)
    assert "●" not in done.stdout.decode()


def test_a_name_that_a_terminal_would_obey_is_shown_as_text(home: Path) -> None:
    with closing(CheckpointService(home=home)) as service:
        service.create_checkpoint("t", "\u202eevil", agent_type="x")
    done = subprocess.run([SYNCD, "task", "show", "t"], capture_output=True, check=True)
    assert "\u202e" not in done.stdout.decode()
