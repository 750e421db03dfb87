"""What every test gets: a home of its own, and no trace of the developer's settings."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from counts import ENCRYPTION, full
from hypothesis import settings

from syncd import CheckpointService

_MEMORY = Path("/dev/shm")
_ROOM = 4 << 30  # more than twice what all of them take at once


def _in_memory() -> bool:
    """Whether temporary files, those of the servers too, can lie there: no test measures a disk,
    and most would wait for it. Some put programs there."""
    return (
        "TMPDIR" not in os.environ
        and os.access(_MEMORY, os.W_OK)
        and not os.statvfs(_MEMORY).f_flag & os.ST_NOEXEC
        and shutil.disk_usage(_MEMORY).free >= _ROOM
    )


# Before anything else is imported, and for the processes that tests start.
if _in_memory():
    os.environ["TMPDIR"] = tempfile.tempdir = str(_MEMORY)

# Whoever runs the tests in the background has it ignored, and so would have all that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)

# What is imported and collected stays: nobody need look through it for garbage, again and again.
gc.disable()

pytest_plugins = ["postgres"]

settings.register_profile("sampled", max_examples=60, deadline=None, print_blob=True)
settings.register_profile("proof", max_examples=2_000, deadline=None, print_blob=True)
settings.load_profile("proof" if os.environ.get("SYNCD_PROOF") else "sampled")


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing from outside reaches a test, and a test reaches nothing outside."""
    for name in os.environ:
        if name.startswith(("SYNCD_", "GIT_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("SYNCD_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.fail.Keyring")
    if ENCRYPTION != "none":
        monkeypatch.setenv("SYNCD_ENCRYPTION", ENCRYPTION)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the cases of a long story a few are enough in daily work, and of some stories none. Some
    look at bodies as they lie in the database, or change them there."""
    proof = (item for item in items if item.get_closest_marker("proof"))
    left_out = full({*_between(items), *proof}, set())
    config.hook.pytest_deselected(items=[item for item in items if item in left_out])
    items[:] = [item for item in items if item not in left_out]
    if ENCRYPTION != "none":
        for item in items:
            if item.get_closest_marker("plain"):
                item.add_marker(pytest.mark.skip(reason="looks at plain bodies"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def _between(items: list[pytest.Item]) -> list[pytest.Item]:
    """All but the first and the last case of each test that has many."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if item.get_closest_marker("variants"):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    return [item for of_one in cases.values() for item in of_one[1:-1]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def service(home: Path) -> Iterator[CheckpointService]:
    opened = CheckpointService(home=home)
    yield opened
    opened.close()
