"""A disk that forgets: what SQLite has not synced may be gone after the power failed.

SQLite reaches files through a table of functions, its VFS. The one it uses by default is copied,
and of each watched database and its write-ahead log the functions that write, shorten and sync are
replaced. They do the same as before and keep account: what was written since the last sync is in
nobody's hands but the kernel's. When the power fails, of that any part may be on the disk, in any
order, and a write may be torn in the middle.

What this models is the database and its log. Other files of a home (keys, settings), their names
and the order between directories and files are not: tests/power_loss.py has those.
"""

from __future__ import annotations

import _sqlite3
import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

OK, FULL, IOERR, IOERR_WRITE, IOERR_FSYNC = 0, 13, 10, 10 | 3 << 8, 10 | 4 << 8
_POINTER = ctypes.c_void_p
_INT, _LONG = ctypes.c_int, ctypes.c_int64
_XOPEN = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _POINTER, _INT, _POINTER)
_XDELETE = ctypes.CFUNCTYPE(_INT, _POINTER, ctypes.c_char_p, _INT)
_XCLOSE = ctypes.CFUNCTYPE(_INT, _POINTER)
_XMOVE = ctypes.CFUNCTYPE(_INT, _POINTER, _POINTER, _INT, _LONG)
_XTRUNCATE = ctypes.CFUNCTYPE(_INT, _POINTER, _LONG)
_XFLAGS = ctypes.CFUNCTYPE(_INT, _POINTER, _INT)
_XSHMLOCK = ctypes.CFUNCTYPE(_INT, _POINTER, _INT, _INT, _INT)


class _Methods(ctypes.Structure):
    """sqlite3_io_methods, version 3."""

    _fields_ = [
        ("iVersion", _INT), ("xClose", _XCLOSE), ("xRead", _XMOVE), ("xWrite", _XMOVE),
        ("xTruncate", _XTRUNCATE), ("xSync", _XFLAGS), ("xFileSize", _POINTER),
        ("xLock", _XFLAGS), ("xUnlock", _POINTER), ("xCheckReservedLock", _POINTER),
        ("xFileControl", _POINTER), ("xSectorSize", _POINTER),
        ("xDeviceCharacteristics", _POINTER), ("xShmMap", _POINTER), ("xShmLock", _XSHMLOCK),
        ("xShmBarrier", _POINTER), ("xShmUnmap", _POINTER), ("xFetch", _POINTER),
        ("xUnfetch", _POINTER),
    ]  # fmt: skip


class _Vfs(ctypes.Structure):
    """sqlite3_vfs, version 3."""

    _fields_ = [
        ("iVersion", _INT), ("szOsFile", _INT), ("mxPathname", _INT), ("pNext", _POINTER),
        ("zName", ctypes.c_char_p), ("pAppData", _POINTER), ("xOpen", _XOPEN),
        ("xDelete", _XDELETE), ("rest", _POINTER * 14),
    ]  # fmt: skip


class _File:
    """One file as it would be found after the power failed, and what it would lack."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.durable = bytearray(path.read_bytes() if path.exists() else b"")
        self.pending: list[tuple[int, bytes | None]] = []

    def written(self, offset: int, data: bytes) -> None:
        self.pending.append((offset, data))

    def shortened(self, size: int) -> None:
        self.pending.append((size, None))

    def synced(self) -> None:
        for change in self.pending:
            _apply(self.durable, *change)
        self.pending = []

    def survivors(self, chance: random.Random) -> bytes:
        """What is on the disk: what was synced, and some of what was not."""
        found = bytearray(self.durable)
        for offset, data in self.pending:
            luck = chance.random()
            if data is not None and luck < 0.2:
                data = data[: chance.randrange(len(data) + 1)]
            if luck < 0.6:
                _apply(found, offset, data)
        return bytes(found)


def _apply(content: bytearray, offset: int, data: bytes | None) -> None:
    if data is None:
        del content[offset:]
        return
    if len(content) < offset:
        content.extend(bytes(offset - len(content)))
    content[offset : offset + len(data)] = data


class Disk:
    """The disk of one home."""

    def __init__(self, database: Path) -> None:
        self._paths = [database, database.with_name(database.name + "-wal")]
        self._index = database.with_name(database.name + "-shm")
        self.files: dict[Path, _File] = {}
        self.open: set[int] = set()
        self.dead = False
        self.full = False
        self.left = -1
        self.on_failure: Callable[[], None] = lambda: None

    def paths(self) -> list[Path]:
        return self._paths

    def file(self, path: Path) -> _File:
        if path not in self.files:
            self.files[path] = _File(path)
        return self.files[path]

    def fail_after(self, writes: int) -> None:
        """The power fails so many writes and syncs from now."""
        self.left = writes

    def spent(self) -> bool:
        """One write or sync more; whether the power has failed by now."""
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                self.die()
        return self.dead

    def die(self) -> None:
        self.dead = True
        for file in self.open:
            ctypes.c_void_p.from_address(file).value = ctypes.addressof(_SHIM.dead)

    def revive(self, chance: random.Random | None) -> None:
        """After everybody has closed it: what is found when the machine is on again. Without a
        chance only the program was killed, and the kernel has kept everything."""
        assert not self.open, "somebody still has the database open"
        found = {
            path: file.survivors(chance) for path, file in self.files.items() if chance is not None
        }
        for path, content in found.items():
            path.write_bytes(content)
        self._index.unlink(missing_ok=True)
        self.forget()

    def forget(self) -> None:
        """The files were replaced: what is there now is there."""
        self.files = {}
        self.dead, self.full, self.left = False, False, -1


class Shim:
    """The replaced functions. One of it, for as long as anybody watches a disk."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL(_sqlite3.__file__)
        self._library.sqlite3_vfs_find.restype = _POINTER
        self._real_address = self._library.sqlite3_vfs_find(None)
        self._real = _Vfs.from_address(self._real_address)
        self._vfs = _Vfs.from_buffer_copy(self._real)
        self._vfs.zName = b"soak"
        self._vfs.xOpen = _XOPEN(self._open)
        self._vfs.xDelete = _XDELETE(self._delete)
        self._disks: dict[Path, Disk] = {}
        self._files: dict[int, tuple[Disk, _File, Any]] = {}
        self._tables: dict[int, tuple[_Methods, _Methods]] = {}
        self.dead = self._dead_table()

    def watch(self, disk: Disk) -> None:
        self._disks |= dict.fromkeys(disk.paths(), disk)

    def unwatch(self, disk: Disk) -> None:
        for path in disk.paths():
            self._disks.pop(path, None)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        self._library.sqlite3_vfs_register(ctypes.byref(self._vfs), 1)
        try:
            yield
        finally:
            self._library.sqlite3_vfs_unregister(ctypes.byref(self._vfs))
            self._library.sqlite3_vfs_register(_POINTER(self._real_address), 1)

    # --- what SQLite calls ----------------------------------------------------------------------

    def _open(self, _vfs: int, name: int, file: int, flags: int, out: int) -> int:
        code: int = self._real.xOpen(self._real_address, name, file, flags, out)
        if code != OK or not name:
            return code
        path = Path(ctypes.string_at(name).decode())
        if disk := self._disks.get(path):
            if disk.dead:
                table = ctypes.c_void_p.from_address(file)
                _Methods.from_address(table.value or 0).xClose(file)
                table.value = None
                return IOERR
            self._attach(file, disk, disk.file(path))
        return OK

    def _attach(self, file: int, disk: Disk, model: _File) -> None:
        table = ctypes.c_void_p.from_address(file)
        address = table.value or 0
        if address not in self._tables:
            real = _Methods.from_address(address)
            self._tables[address] = real, self._table(real)
        real, ours = self._tables[address]
        self._files[file] = disk, model, real
        disk.open.add(file)
        table.value = ctypes.addressof(ours)

    def _table(self, real: _Methods) -> _Methods:
        ours = _Methods.from_buffer_copy(real)
        ours.xClose = _XCLOSE(self._close)
        ours.xWrite = _XMOVE(self._write)
        ours.xTruncate = _XTRUNCATE(self._truncate)
        ours.xSync = _XFLAGS(self._sync)
        self.dead.iVersion = real.iVersion
        for name in ("xFileSize", "xUnlock", "xCheckReservedLock", "xFileControl", "xSectorSize",
                     "xDeviceCharacteristics", "xShmMap", "xShmBarrier", "xShmUnmap", "xFetch",
                     "xUnfetch"):  # fmt: skip
            setattr(self.dead, name, getattr(real, name))
        return ours

    def _dead_table(self) -> _Methods:
        """What a program can still do whose machine has no power: let go of its files."""
        dead = _Methods()
        dead.xClose = _XCLOSE(self._close)
        dead.xRead = _XMOVE(lambda *_: IOERR)
        dead.xWrite = _XMOVE(lambda *_: IOERR_WRITE)
        dead.xTruncate = _XTRUNCATE(lambda *_: IOERR)
        dead.xSync = _XFLAGS(lambda *_: IOERR_FSYNC)
        dead.xLock = _XFLAGS(lambda *_: IOERR)
        dead.xShmLock = _XSHMLOCK(self._shm_lock)
        return dead

    def _shm_lock(self, file: int, offset: int, count: int, flags: int) -> int:
        unlock = flags & 1
        real = self._files[file][2]
        return int(real.xShmLock(file, offset, count, flags)) if unlock else IOERR

    def _close(self, file: int) -> int:
        disk, _, real = self._files.pop(file)
        disk.open.discard(file)
        return int(real.xClose(file))

    def _write(self, file: int, data: int, size: int, offset: int) -> int:
        disk, model, real = self._files[file]
        if disk.full:
            return FULL
        model.written(offset, ctypes.string_at(data, size))
        if disk.spent():
            return IOERR_WRITE
        return int(real.xWrite(file, data, size, offset))

    def _truncate(self, file: int, size: int) -> int:
        _, model, real = self._files[file]
        model.shortened(size)
        return int(real.xTruncate(file, size))

    def _sync(self, file: int, _flags: int) -> int:
        """The real one is left out: nobody is going to pull the plug of this machine."""
        disk, model, _ = self._files[file]
        if disk.spent():
            return IOERR_FSYNC
        model.synced()
        return OK

    def _delete(self, _vfs: int, name: bytes, synced: int) -> int:
        path = Path(name.decode())
        disk = self._disks.get(path)
        if disk and disk.dead:
            return IOERR
        if disk:
            disk.files.pop(path, None)
        return int(self._real.xDelete(self._real_address, name, synced))


_SHIM = Shim()


def shim() -> Shim:
    return _SHIM
