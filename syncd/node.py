"""One device: its home directory, settings, keys and store. The one place where parts meet."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from syncd import clock, config, loss
from syncd.database import patiently, unforked
from syncd.entry import uuid7
from syncd.errors import (
    CheckpointNotFoundError,
    DatabaseCorruptError,
    DiskRefusedError,
    HomeError,
    KeyMissingError,
    ReadOnlyError,
    StoreError,
    UsageError,
)
from syncd.keychain import Keychain
from syncd.refusals import refused, translated
from syncd.seal import SigningKey, digest, publish_once
from syncd.sql import SQLITE_VERSION, exclusive, migrate_sqlite, queries
from syncd.store import Store
from syncd.vault import NONE, Vault

if TYPE_CHECKING:
    from syncd.backup import Backup
    from syncd.replica import Replica
    from syncd.sync import Engine, Progress

_FOLDERS = ("keys", "backups", "run", "log")
_FILES = ("context.db", "config.toml", "setup.json")
# Left by a change of the signing key that was cut off.
_CUT_OFF = ("signing.pem.old", "signing.pem.next")
# The views as this version folds them; kept in each home.
_VIEWS = str(SQLITE_VERSION)
_MACHINE_IDS = (Path("/etc/machine-id"), Path("/var/lib/dbus/machine-id"))


class Node:
    """Opens what it needs when it needs it; first use makes the home."""

    def __init__(self, home: Path | None = None, busy_seconds: float | None = None) -> None:
        """`busy_seconds`: for one who cannot wait as long as the settings say."""
        self.home = config.home(home)
        self._busy_seconds = busy_seconds
        self._settings: config.Settings | None = None
        self._store: Store | None = None
        self._key: SigningKey | None = None
        self._vault: Vault | None = None
        self.ask_passphrase: Callable[[], str] = str  # nobody to ask: none

    # No `cached_property`: its lock would stay held in a child that is forked while another
    # thread computes the value. Settings and key may be read twice; the store is opened once.

    @property
    def settings(self) -> config.Settings:
        if self._settings is None:
            self._settings = config.load(self.home / "config.toml")
        return self._settings

    @property
    def key(self) -> SigningKey:
        """The key that is pinned for this home's id. Looked at each time: another process may have
        changed it, or a database from before such a change was brought back."""
        pinned = self.store.row("own_key")
        if self._key is None:
            if pinned and not (self._keys / "signing.pem").exists():
                loss.tell_of_key(self.home)
            self._key = SigningKey.at(self._keys / "signing.pem")
        if pinned != (self._key.public(),):
            self._key = self._mended_key(self.store)
        return self._key

    def _mended_key(self, store: Store) -> SigningKey:
        from syncd.exchange import Exchange
        from syncd.rotation import mended

        with suppress(ReadOnlyError, DiskRefusedError):
            return mended(Exchange(store), self._keys)
        return SigningKey.at(self._keys / "signing.pem")

    @property
    def _keys(self) -> Path:
        return self.home / "keys"

    @property
    def store(self) -> Store:
        if self._store is None:
            with unforked:
                if self._store is None:
                    self._store = self._ready_store()
        return self._store

    @store.setter
    def store(self, store: Store) -> None:
        self._store = store

    def _ready_store(self) -> Store:
        self._check_owner()
        gone = loss.is_gone(self.home)
        if self.database.exists() and not all((self.home / name).is_dir() for name in _FOLDERS):
            self._make_folders()  # whoever tidied up has left us nowhere to work
        store = self._open_store() if self.database.exists() else None
        if store is None or store.schema_version < SQLITE_VERSION or not store.device_id:
            if store is not None:
                store.close()
            self._prepare(gone)
            store = self._open_store()
        if any((self._keys / name).exists() for name in _CUT_OFF):
            self._key = self._mended_key(store)
        self._settle_in(store)
        self._fold_anew(store)
        return store

    def _fold_anew(self, store: Store) -> None:
        """Another version may have taken in kinds of entries that it had no view for, or the
        database is a copy from that time. What cannot be folded is the audit's business."""
        if store.row("state", ("views",)) == (_VIEWS,):
            return
        from syncd.projection import rebuild

        with suppress(ReadOnlyError, DiskRefusedError, DatabaseCorruptError), store.transaction():
            rebuild(store)
            store.change("put_state", ("views", _VIEWS))

    def _settle_in(self, store: Store) -> None:
        here = whereabouts(self.home)
        if store.row("state", ("whereabouts",)) == (here,):
            return
        from syncd.exchange import Exchange
        from syncd.healing import settle_in

        # Where nothing can be written, nothing can be written twice.
        with suppress(ReadOnlyError, DiskRefusedError):
            settle_in(Exchange(store), SigningKey.at(self._keys / "signing.pem"), here)

    def _open_store(self) -> Store:
        return Store(self.database, vault=self.vault, busy_seconds=self._patience)

    @property
    def _patience(self) -> float:
        usual: float = self.settings["store.busy_seconds"]
        return usual if self._busy_seconds is None else min(usual, self._busy_seconds)

    @property
    def vault(self) -> Vault:
        if self._vault is None:
            chain, mode = Keychain(self.home, self.passphrase), self.settings["encryption"]
            self._vault = Vault(chain, mode, lambda: self.store.row("sealed_here") is not None)
        return self._vault

    def passphrase(self, asking: bool = False) -> str:
        """Of the data keys, if they have one: from the environment or a file, else from whoever
        can be asked."""
        if (said := os.environ.get("SYNCD_KEYS_PASSPHRASE")) is not None:
            return said
        if not (file := self.settings["keys.passphrase_file"]):
            return self.ask_passphrase() if asking else ""
        try:
            return Path(file).expanduser().read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, ValueError) as error:
            raise KeyMissingError(
                f"the passphrase file {file} cannot be read: {error}",
                "Correct keys.passphrase_file.",
            ) from None

    def replica(self) -> Replica:
        """This home's replica; connects when it is used."""
        from syncd import credentials
        from syncd.replica import Replica

        return Replica(credentials.dsn(self.home, self.settings), self.settings["cloud.tls"])

    @contextmanager
    def syncing(self, progress: Progress | None = None) -> Iterator[Engine]:
        """The exchange with the replica, once."""
        with closing(self.replica()) as replica, self.exchanging():
            yield self.engine(replica, progress)

    def engine(self, replica: Replica, progress: Progress | None = None) -> Engine:
        from syncd.exchange import Exchange
        from syncd.sync import Engine, silent

        key = self.key
        return Engine(Exchange(self.store), replica, key, progress or silent)

    def exchanging(self, seconds: float | None = None) -> AbstractContextManager[None]:
        """One exchange at a time: others wait for their turn, or give up after some seconds."""
        return exclusive(self.home / "run" / "sync.lock", seconds)

    def replaced(self) -> bool:
        """Whether the database that is open is no longer the file of that name."""
        try:
            return self._store is not None and self.database.stat().st_ino != self._store.inode
        except OSError:
            return False  # there is no other one yet

    def reload(self) -> None:
        """Read the settings again; those that are in force stay if the new ones are no good."""
        self._settings = config.load(self.home / "config.toml")
        self.vault.mode = self._settings["encryption"]
        self.vault.forget()

    @property
    def database(self) -> Path:
        return self.home / "context.db"

    def close(self) -> None:
        if self._store is not None:
            self._store.close()
            self._store = None

    # --- the home ---------------------------------------------------------------------------

    def _prepare(self, gone: bool) -> None:
        """Make the home, or bring it up to date; `gone` if it has had a database before."""
        try:
            self._make_folders()
            if problem := lock_problem(self.home / "run"):
                raise HomeError(f"{self.home} is on a file system without locks: {problem}")
            if not self.database.exists():
                self._keep_encryption()
                publish_once(self.database, b"")
            self._migrate(gone)
        except OSError as error:
            raise refused(error, self.home) from None

    def _keep_encryption(self) -> None:
        """What the environment alone says would hold for those programs only that have it too."""
        file, mode = self.home / "config.toml", self.settings["encryption"]
        if mode != NONE and "encryption" not in config.document(file):
            config.put(file, "encryption", mode)

    def _check_owner(self) -> None:
        try:
            owner = self.home.stat().st_uid
        except FileNotFoundError:
            return
        except OSError as error:
            raise HomeError(f"{self.home} cannot be read: {error.strerror}") from None
        if not self.home.is_dir():
            raise HomeError(f"{self.home} is not a directory")
        if self.database.is_dir():
            raise HomeError(f"{self.database} is a directory")
        if owner != os.geteuid():
            raise HomeError(
                f"{self.home} belongs to another user (uid {owner}, you are {os.geteuid()})",
                "Run syncd as its owner, or set SYNCD_HOME to a directory of your own.",
            )

    def _make_folders(self) -> None:
        missing = [path for path in self.home.parents if not path.exists()]
        own = [self.home, *(self.home / name for name in _FOLDERS)]
        shared = self._has_other_things()
        for folder in [*reversed(missing), *own]:  # whatever the umask says
            folder.mkdir(exist_ok=True)
            if folder != self.home or not shared:
                folder.chmod(0o700)

    def _has_other_things(self) -> bool:
        """Whether it is a directory that serves something else too, such as /tmp: how open that is
        is not ours to change, and every file of ours is closed to others by itself."""
        found = {path.name for path in self.home.iterdir()} if self.home.exists() else set()
        return any(not name.startswith(_FILES) for name in found.difference(_FOLDERS))

    def _migrate(self, gone: bool) -> None:
        # Processes that meet in a new home also meet while one switches the file to WAL, or the
        # last one there closes it: SQLite refuses the others at once, however long they would wait.
        with unforked:
            try:
                patiently(partial(self._bring_up_to_date, gone), self._patience)
            except sqlite3.Error as error:
                raise translated(error) from error

    def _bring_up_to_date(self, gone: bool) -> None:
        with closing(sqlite3.connect(self.database, isolation_level=None)) as connection:
            # Heeded by a new file only. A checkpoint of usual size fits twice into 8 KB and once
            # into 4: as fast to write, and a third smaller on disk.
            connection.execute("PRAGMA page_size = 8192")
            [mode] = connection.execute("PRAGMA journal_mode = WAL").fetchone()
            if mode != "wal":
                raise HomeError("the file system does not support SQLite's write-ahead log")
            before = partial(self.back_up, "before-migration")
            migrate_sqlite(connection, self.home / "run" / "migrate.lock", before)
            self._introduce(connection, gone)

    def back_up(self, label: str = "") -> Backup:
        from syncd import backup

        if self._store is not None:
            self._sign_head()
        # While nobody has decided about a database that is gone, its copies are all there is.
        keep = 0 if self._store and self._store.row("state", (loss.BEGUN_ANEW,)) else self._keep
        return backup.create(self.database, self.home / "backups", keep, label, self.vault)

    @property
    def _keep(self) -> int:
        kept: int = self.settings["backup.keep"]
        return kept

    def _sign_head(self) -> None:
        from syncd.exchange import Exchange
        from syncd.rotation import sign_head

        # What cannot be written to, or has no readable key, is copied all the same.
        with suppress(StoreError):
            sign_head(Exchange(self.store), self.key)

    def _introduce(self, connection: sqlite3.Connection, gone: bool) -> None:
        """Give the device its id and pin its key; the first process to get here decides."""
        sql, now = queries(), clock.wall_ms()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(sql["set_state"], ("device_id", uuid7()))
        device_id = connection.execute(sql["state"], ("device_id",)).fetchone()[0]
        public = SigningKey.at(self._keys / "signing.pem").public()
        connection.execute(sql["add_device"], (device_id, public, clock.iso(now)))
        connection.execute(sql["set_state"], ("whereabouts", whereabouts(self.home)))
        if not connection.execute(sql["newest"]).fetchone():
            connection.execute(sql["set_state"], ("views", _VIEWS))
        if gone:
            connection.execute(sql["set_state"], loss.noted(self.home))
        connection.execute("COMMIT")

    # --- ids --------------------------------------------------------------------------------

    def checkpoint_id(self, prefix: str) -> str:
        return self._full_id("checkpoint_ids", prefix, "checkpoint")

    def entry_id(self, prefix: str) -> str:
        return self._full_id("entry_ids", prefix, "revision")

    def _full_id(self, query: str, prefix: str, kind: str) -> str:
        found = self.store.find(query, prefix) if prefix else []
        if prefix in found or len(found) == 1:
            return prefix if prefix in found else found[0]
        if not found:
            raise CheckpointNotFoundError(f"there is no {kind} {prefix!r}")
        raise UsageError(
            f"{prefix!r} fits more than one {kind}: {', '.join(found)}", "Give more characters."
        )


def user() -> str:
    """Who is at the keyboard; some containers have no name for their user."""
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError):
        return f"uid {os.getuid()}"


def whereabouts(home: Path) -> str:
    """The machine and the directory, as a digest: a home that was copied is elsewhere."""
    machine = ""
    for file in _MACHINE_IDS:
        with suppress(OSError):
            machine = machine or file.read_text().strip()
    return digest(f"syncd {machine} {home.stat().st_ino}".encode())


def lock_problem(folder: Path) -> str | None:
    """Why files in `folder` cannot be locked, or None."""
    import fcntl

    probe = folder / "lock-test"
    try:
        with probe.open("w") as file:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return None  # another process is asking the same
            except OSError as error:
                return error.strerror or str(error)
    finally:
        probe.unlink(missing_ok=True)
    return None
