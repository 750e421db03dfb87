"""What every test gets: a home of its own, and no trace of the developer's settings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from counts import ENCRYPTION
from hypothesis import settings

from syncd import CheckpointService

pytest_plugins = ["postgres"]

settings.register_profile("sampled", max_examples=100, deadline=None, print_blob=True)
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Some look at bodies as they lie in the database, or change them there."""
    if ENCRYPTION != "none":
        for item in items:
            if item.get_closest_marker("plain"):
                item.add_marker(pytest.mark.skip(reason="looks at plain bodies"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


@pytest.fixture
def service(home: Path) -> Iterator[CheckpointService]:
    opened = CheckpointService(home=home)
    yield opened
    opened.close()
