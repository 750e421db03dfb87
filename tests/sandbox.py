"""Run a program under the system call filters that a unit asks for, as systemd would set them.

`sandbox.py UNIT PROGRAM …`: SystemCallFilter, MemoryDenyWriteExecute and RestrictAddressFamilies,
through libseccomp; the names in a group are those that systemd-analyze tells.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

ALLOW, ERRNO = 0x7FFF0000, 0x00050000
EQUAL, MASKED = 4, 7
WRITE, EXECUTE, SHM_EXECUTE = 2, 4, 0o100000


class Argument(ctypes.Structure):
    _fields_ = (
        ("number", ctypes.c_uint), ("compare", ctypes.c_int),
        ("first", ctypes.c_uint64), ("second", ctypes.c_uint64),
    )  # fmt: skip


class Filter:
    def __init__(self, library: ctypes.CDLL, otherwise: int) -> None:
        self._library = library
        self._context = ctypes.c_void_p(library.seccomp_init(otherwise))

    def rule(self, action: int, call: str, *arguments: Argument) -> None:
        number = self._library.seccomp_syscall_resolve_name(call.encode())
        if number >= 0:  # not on this machine's processor
            array = (Argument * len(arguments))(*arguments)
            done = self._library.seccomp_rule_add_array(
                self._context, ctypes.c_uint32(action), number, len(arguments), array
            )
            assert done == 0, (call, os.strerror(-done))

    def load(self) -> None:
        assert self._library.seccomp_load(self._context) == 0


def settings(unit: Path, key: str) -> list[str]:
    lines = unit.read_text(encoding="utf-8").splitlines()
    return [line.partition("=")[2] for line in lines if line.startswith(f"{key}=")]


def calls(group: str) -> set[str]:
    """All that a group names, those of the groups in it included."""
    told = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, check=True
    )
    words = [line.strip() for line in told.stdout.splitlines()[1:]]
    found: set[str] = set()
    for word in words:
        if word.startswith("@"):
            found |= calls(word)
        elif word and not word.startswith("#"):
            found.add(word)
    return found


def allowed(unit: Path) -> set[str]:
    # What systemd always allows.
    found = calls("@default")
    for line in settings(unit, "SystemCallFilter"):
        named = set().union(*(calls(group) for group in line.removeprefix("~").split()))
        found = found - named if line.startswith("~") else found | named
    return found


def main(unit: Path, program: list[str]) -> None:
    library = ctypes.CDLL(ctypes.util.find_library("seccomp"), use_errno=True)
    library.seccomp_init.restype = ctypes.c_void_p
    refuse = ERRNO | errno.EPERM
    names = allowed(unit)

    memory = Filter(library, ALLOW)
    both = WRITE | EXECUTE
    memory.rule(refuse, "mmap", Argument(2, MASKED, both, both))
    memory.rule(refuse, "mprotect", Argument(2, MASKED, EXECUTE, EXECUTE))
    memory.rule(refuse, "pkey_mprotect", Argument(2, MASKED, EXECUTE, EXECUTE))
    memory.rule(refuse, "shmat", Argument(2, MASKED, SHM_EXECUTE, SHM_EXECUTE))
    families = Filter(library, ALLOW)
    named = {getattr(socket, word) for word in settings(unit, "RestrictAddressFamilies")[0].split()}
    for family in set(range(46)) - named:
        families.rule(ERRNO | errno.EAFNOSUPPORT, "socket", Argument(0, EQUAL, family))
    listed = Filter(library, refuse)
    for name in sorted(names):
        listed.rule(ALLOW, name)
    assert settings(unit, "MemoryDenyWriteExecute") == ["yes"]
    memory.load()
    families.load()
    # Last: it refuses to have more filters set.
    listed.load()
    os.execv(program[0], program)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
