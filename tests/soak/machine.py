"""One machine of a simulation: a home on a disk that may fail, the user's programs, the daemon."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
from devices import Device, folder

from soak.disk import Disk, shim
from soak.network import Line, Wire
from syncd import CheckpointService, config
from syncd.daemon import exchanger
from syncd.daemon.exchanger import Exchanger
from syncd.errors import SyncdError
from syncd.keychain import Keychain
from syncd.node import Node, whereabouts
from syncd.replica.login import Login
from syncd.sql import queries

if TYPE_CHECKING:
    from soak.world import World

_POLL_MS = 60_000
_FOLDERS = ("keys", "backups", "run", "log")


@cache
def _settings(encryption: str) -> config.Settings:
    """A replica is configured: which one, the machine knows."""
    found = {value.setting.name: value for value in config.load(Path("/none")).explained()}
    changed = {
        "cloud.dsn": "simulated", "store.busy_seconds": 0.5, "encryption": encryption,
    }  # fmt: skip
    return config.Settings(
        {name: v._replace(value=changed.get(name, v.value)) for name, v in found.items()}
    )


@cache
def blank() -> bytes:
    """A database that was migrated and belongs to nobody: to make one takes long."""
    with folder() as place:
        with closing(Node(place / "home")) as node:
            node.store  # noqa: B018 (makes the home)
            file = node.database
        with closing(sqlite3.connect(file, isolation_level=None)) as made:
            made.execute("DELETE FROM state")
            made.execute("DELETE FROM devices")
            made.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        return file.read_bytes()


class _Node(Node):
    """A program's view of the home, with the machine's wire."""

    def __init__(self, machine: Machine) -> None:
        super().__init__(machine.home)
        self._machine = machine
        self._settings = _settings(machine.world.plan.encryption)

    def replica(self) -> Line:
        return self._machine.line()

    def reload(self) -> None:
        self.vault.forget()


class _Daemon(Exchanger):
    """The daemon's side of the exchange, whose errors somebody judges."""

    def __init__(self, machine: Machine, node: Node) -> None:
        super().__init__(node, lambda: None)
        self._machine = machine

    def _failed(self, error: SyncdError) -> None:
        super()._failed(error)
        self._machine.world.told(error, self._machine)


class Machine(Device):
    """Two programs have its home open: the user's and the daemon."""

    def __init__(self, world: World, number: int, home: Path, login: Login, skew_ms: int) -> None:
        self.world = world
        self.number = number
        self.home = home
        self.login = login
        self.skew_ms = skew_ms
        self.drift = 0.0
        self.born = world.now_ms
        self.disk = Disk(home / "context.db")
        self.wire = Wire(world)
        self.told: dict[str, bytes] = {}
        self.polled_ms = world.now_ms
        self.rotated = False
        self.backup: Path | None = None
        self.revoked = False
        self._inspector: sqlite3.Connection | None = None
        self._pipe: tuple[int, ...] = ()
        shim().watch(self.disk)
        if not home.exists():
            for name in _FOLDERS:
                (home / name).mkdir(parents=True)
            (home / "context.db").write_bytes(blank())
        self.open()

    @property
    def dsn(self) -> str:  # type: ignore[override]
        return self.login.dsn

    @property
    def replica(self) -> Line:  # type: ignore[override]
        return self.line()

    def line(self) -> Line:
        return Line(self.wire, self.login.dsn)

    def wall_ms(self) -> int:
        """What its clock shows."""
        passed = self.world.now_ms - self.born
        return self.world.now_ms + self.skew_ms + int(passed * self.drift)

    def open(self) -> None:
        with self.world.acting(self):
            self.take_keys()
            self.node, self.service = self.program()
            self._daemon_node = _Node(self)
            self.exchanger = _Daemon(self, self._daemon_node)
            self._pipe = self.exchanger._bell, self.exchanger._rope

    def take_keys(self) -> None:
        for key in self.world.keys:
            Keychain(self.home, lambda _: "").add(key)

    def program(self) -> tuple[Node, CheckpointService]:
        """One more that has the home open."""
        node = _Node(self)
        return node, CheckpointService(node=node)

    def close(self) -> None:
        with self.world.acting(self):
            if self._inspector is not None:
                self._inspector.close()
                self._inspector = None
            self.node.close()
            self._daemon_node.close()
            for descriptor in self._pipe:
                os.close(descriptor)
            self._pipe = ()
            self.wire.daemon = None

    def leave(self) -> None:
        """The simulation is over."""
        self.close()
        shim().unwatch(self.disk)

    def sync(self, *, push: bool = True, pull: bool = True) -> Any:
        """`syncd sync`, from another process than the daemon's: what it writes the daemon sees."""
        try:
            with self.node.exchanging(0.5), closing(self.line()) as line:
                return self.node.engine(line).sync(push=push, pull=pull)
        finally:
            self.written()

    # --- the daemon -------------------------------------------------------------------------------

    def written(self) -> None:
        """The daemon's watch on the write-ahead log sees that somebody wrote."""
        self.exchanger.want(exchanger.LOOK)

    def tick(self) -> bool:
        """The daemon goes on if there is something to do; whether there was."""
        with self.world.acting(self):
            if self.wire.news and self.wire.daemon is not None:
                self.exchanger.want(exchanger.NEWS)
            if self.world.now_ms - self.polled_ms >= _POLL_MS:
                self.polled_ms = self.world.now_ms
                self.exchanger.want(exchanger.PUSH, exchanger.PULL)
            wanted = self.exchanger.ready()
            if wanted:
                self.exchanger.step(wanted)
            return bool(wanted)

    # --- disasters --------------------------------------------------------------------------------

    def reboot(self, chance: random.Random | None) -> None:
        """The power failed, or somebody has killed all programs if there is no chance about it."""
        self.disk.die()
        self.close()
        self.disk.revive(chance)
        self.open()

    def unplug(self) -> None:
        """The server has ended all connections."""
        if self.exchanger._replica is not None:
            self.exchanger._replica.cut()

    def copied_to(self, home: Path, *, image: bool) -> None:
        """The home on another machine; `image` so that it looks like the same."""
        for name in _FOLDERS:
            (home / name).mkdir(parents=True)
        for file in (self.home / "keys").iterdir():
            shutil.copy(file, home / "keys")
        copied = self.copy(home / "context.db")
        with closing(sqlite3.connect(copied, isolation_level=None)) as copy:
            if image:
                here = "UPDATE state SET value = ? WHERE name = 'whereabouts'"
                copy.execute(here, (whereabouts(home),))

    def restore(self, copy: Path) -> None:
        self.close()
        for file in self.home.glob("context.db*"):
            file.unlink()
        shutil.copy(copy, self.home / "context.db")
        self.disk.forget()
        self.open()

    # --- looking at it ----------------------------------------------------------------------------

    def own_entries(self) -> set[str]:
        """What it wrote and still has, and may send: not what the replica refused, nor what went
        there, or should have gone, with another login."""
        ids = {row[0] for row in self.rows(queries()["own_ids"])}
        ids -= self.world.ground.devices_of_others(self.login)
        for (left,) in self.rows("SELECT value FROM state WHERE name = 'left'"):
            ids -= set(orjson.loads(left))
        rows = self.rows("SELECT entry_id, device_id FROM log WHERE refused IS NULL")
        return {entry for entry, device in rows if device in ids}

    @property
    def inspector(self) -> sqlite3.Connection:
        """A connection of the simulation's own, that sees what is committed."""
        if self._inspector is None:
            self._inspector = sqlite3.connect(self.home / "context.db", isolation_level=None)
        return self._inspector

    def rows(self, text: str, *values: object) -> list[tuple[Any, ...]]:
        return self.inspector.execute(text, values).fetchall()
