"""The daemon as a service of the user's: systemd's unit, or launchd's agent.

One per home. What is written outside the home is this one file, and the link by which systemd
remembers that it is enabled.
"""

from __future__ import annotations

import hashlib
import os
import plistlib
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from syncd import config
from syncd.errors import ServiceError
from syncd.sql import shipped

_SECONDS = 30.0
# Starting may have to migrate, stopping to send what is left: the unit limits both.
_PATIENT_SECONDS = 660.0
# After daemon.grace_seconds the daemon still has to close what it has open.
_CLOSING_SECONDS = 25
_RETRY_SECONDS = 30
_TEMPORARY = (Path("/tmp"), Path("/var/tmp"))  # noqa: S108 (to be recognized, not used)


class State(NamedTuple):
    installed: bool
    enabled: bool
    active: bool
    manager: str
    unit: str


def name_of(home: Path) -> str:
    """`syncd` for the default home; any other has its own."""
    place = home.resolve()
    if place == config.default_home().resolve():
        return "syncd"
    return f"syncd-{hashlib.sha256(os.fsencode(place)).hexdigest()[:8]}"


def command(home: Path) -> list[str]:
    """With full paths: a service does not have the PATH of a shell. `-P`: a folder `syncd` where
    it happens to start must not be taken for the program."""
    return [sys.executable, "-P", "-m", "syncd", "--home", str(home), "run", "--quiet"]


def service_of(home: Path) -> Systemd | Launchd:
    return Launchd(home) if sys.platform == "darwin" else Systemd(home)


# --- systemd ------------------------------------------------------------------------------------


class Systemd:
    manager = "systemd"

    def __init__(self, home: Path) -> None:
        self._home = home
        self.name = f"{name_of(home)}.service"
        self.file = _config_folder() / "systemd" / "user" / self.name
        self.look = f"systemctl --user status {self.name}"
        self.hint = "On a machine where nobody logs in: loginctl enable-linger"

    def answers(self) -> bool:
        """Whether a manager of this user's runs: its program alone may be anywhere."""
        return _call("systemctl", "--user", "show-environment").returncode == 0

    def text(self, grace_seconds: float) -> str:
        return systemd_text(self._home, command(self._home), grace_seconds, _has_namespaces())

    def install(self, text: str) -> None:
        _write(self.file, text.encode())
        _must("systemctl", "--user", "daemon-reload")

    def start(self) -> None:
        _must("systemctl", "--user", "enable", "--now", self.name, seconds=_PATIENT_SECONDS)

    def stop(self) -> None:
        _must("systemctl", "--user", "stop", self.name, seconds=_PATIENT_SECONDS)

    def remove(self) -> None:
        there = self.answers()
        if there and self.file.exists():
            off = ("systemctl", "--user", "disable", "--now", self.name)
            _must(*off, seconds=_PATIENT_SECONDS)
        link = self.file.parent / "default.target.wants" / self.name
        _remove(link, 1)
        _remove(self.file, 3)
        if there:
            _must("systemctl", "--user", "daemon-reload")
            # Without it a unit that had failed would stay listed.
            _call("systemctl", "--user", "reset-failed", self.name)

    def state(self) -> State:
        there = self.answers()
        enabled, active = (
            there and _call("systemctl", "--user", asked, self.name).returncode == 0
            for asked in ("is-enabled", "is-active")
        )
        manager = self.manager if there else "none"
        return State(self.file.exists(), enabled, active, manager, str(self.file))


def systemd_text(
    home: Path, words: Sequence[str], grace_seconds: float, namespaces: bool = True
) -> str:
    """The unit that ships with the package, for this home and this program."""
    _check_printable(*words)
    if set(words[0]) & set("\"'\\$"):
        # Refused by systemd itself, but for $: it starts the right program, by a wrong name.
        raise ServiceError(
            f"systemd starts no program with such a name: {words[0]}",
            "Install syncd in a folder without quotes, backslashes and $ in its path.",
        )
    # What is in /tmp cannot be seen by a service that has its own.
    temporary = any(home.resolve().is_relative_to(folder) for folder in _TEMPORARY)
    writable = _TEMPORARY if temporary else (home,)
    text = (shipped("systemd") / "syncd.service").read_text(encoding="utf-8")
    for key, value in {
        "Description": _plain(f"syncd, keeps {home} and its replica in step"),
        "ConditionPathExists": _plain(f"{home}/context.db"),
        "ExecStart": " ".join(_quoted(word.replace("$", "$$")) for word in words),
        "TimeoutStopSec": str(int(grace_seconds) + _CLOSING_SECONDS),
        "PrivateUsers": "yes" if namespaces else "no",
        "ReadWritePaths": " ".join(_quoted(str(path)) for path in writable),
        "PrivateTmp": "no" if temporary else "yes",
    }.items():
        text = _with(text, f"{key}=", value)
    return text


def _with(text: str, key: str, value: str) -> str:
    lines = text.split("\n")
    return "\n".join(key + value if line.startswith(key) else line for line in lines)


def _plain(text: str) -> str:
    """systemd puts values in where a % stands."""
    return text.replace("%", "%%")


def _quoted(text: str) -> str:
    """One word of several; a backslash means something to systemd in any quotes."""
    return shlex.quote(_plain(text).replace("\\", "\\\\"))


def _has_namespaces() -> bool:
    """Whether the kernel lets this user's manager have what the unit's PrivateUsers= needs."""
    asked = ("systemd-run", "--user", "--quiet", "--wait", "--collect")
    wanted = ("--property=PrivateUsers=yes", "--property=ProtectSystem=strict")
    return _call(*asked, *wanted, "true").returncode == 0


def _config_folder() -> Path:
    named = Path(os.environ.get("XDG_CONFIG_HOME", ""))
    # The XDG specification: a path that is not absolute is to be ignored.
    return named if named.is_absolute() else Path.home() / ".config"


# --- launchd ------------------------------------------------------------------------------------


class Launchd:
    manager = "launchd"

    def __init__(self, home: Path) -> None:
        self._home = home
        self.name = name_of(home)
        self.file = Path.home() / "Library" / "LaunchAgents" / f"{self.name}.plist"
        self._domain = f"gui/{os.getuid()}"
        self._target = f"{self._domain}/{self.name}"
        self.look = f"launchctl print {self._target}"
        self.hint = "launchd starts it again after `syncd stop`; `syncd service uninstall` ends it."

    def answers(self) -> bool:
        """Over SSH, with nobody at the screen, there is no such domain."""
        return _call("launchctl", "print", self._domain).returncode == 0

    def text(self, grace_seconds: float) -> str:
        return launchd_text(self._home, command(self._home), grace_seconds)

    def install(self, text: str) -> None:
        _write(self.file, text.encode())

    def start(self) -> None:
        if _call("launchctl", "print", self._target).returncode != 0:
            _must("launchctl", "enable", self._target)
            _must("launchctl", "bootstrap", self._domain, str(self.file), seconds=_PATIENT_SECONDS)

    def stop(self) -> None:
        """Gone from launchd, too: else it would go on with the agent as it was."""
        _call("launchctl", "bootout", self._target, seconds=_PATIENT_SECONDS)
        deadline = time.monotonic() + _PATIENT_SECONDS
        while _call("launchctl", "print", self._target).returncode == 0:
            if time.monotonic() > deadline:
                raise ServiceError(f"launchd does not let go of {self.name}")
            time.sleep(0.2)

    def remove(self) -> None:
        self.stop()
        _remove(self.file, 1)

    def state(self) -> State:
        there = self.answers()
        loaded = _call("launchctl", "print", self._target)
        active = loaded.returncode == 0 and "state = running" in loaded.stdout
        off = rf'"{re.escape(self.name)}" => (disabled|true)'
        disabled = re.search(off, _call("launchctl", "print-disabled", self._domain).stdout)
        installed = self.file.exists()
        manager = self.manager if there else "none"
        return State(installed, installed and not disabled, active, manager, str(self.file))


def launchd_text(home: Path, words: Sequence[str], grace_seconds: float) -> str:
    _check_printable(*words)
    log = str(home / "log" / "service.log")
    agent = {
        "Label": name_of(home),
        "ProgramArguments": list(words),
        "RunAtLoad": True,
        # A deleted home ends the daemon; it is not to be started again and again without one.
        "KeepAlive": {"PathState": {str(home / "context.db"): True}},
        "ThrottleInterval": _RETRY_SECONDS,
        "ExitTimeOut": int(grace_seconds) + _CLOSING_SECONDS,
        "Umask": 0o077,
        "HardResourceLimits": {"Core": 0},
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(agent, sort_keys=False).decode()


# --- files and programs -------------------------------------------------------------------------


def _check_printable(*words: str) -> None:
    for word in words:
        if not word.isprintable():
            raise ServiceError(
                f"a service cannot be given the name {word!r}",
                "Rename what has line breaks or other unprintable characters in its name.",
            )


def _write(file: Path, content: bytes) -> None:
    """Whole or not at all."""
    file.parent.mkdir(parents=True, exist_ok=True)
    draft = file.with_name(f".{file.name}.{os.getpid()}.new")
    try:
        draft.write_bytes(content)
        draft.replace(file)
    finally:
        draft.unlink(missing_ok=True)


def _remove(file: Path, folders: int) -> None:
    """And of the folders above it, so many, those that are empty now."""
    file.unlink(missing_ok=True)
    with suppress(OSError):
        for folder in list(file.parents)[:folders]:
            folder.rmdir()


def _must(*words: str, seconds: float = _SECONDS) -> None:
    done = _call(*words, seconds=seconds)
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
        raise ServiceError(f"`{shlex.join(words)}` failed: {said}")


def _call(*words: str, seconds: float = _SECONDS) -> subprocess.CompletedProcess[str]:
    """Another program's answer; one that is not there, or does not answer, has failed."""
    # A shell of cron's or an agent's may not say where the user's manager listens.
    environment = {"XDG_RUNTIME_DIR": f"/run/user/{os.getuid()}", **os.environ, "LC_ALL": "C"}
    try:
        return subprocess.run(
            words, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True,
            errors="replace", timeout=seconds,
        )  # fmt: skip
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", f"{words[0]}: {error.strerror}")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 124, "", f"no answer within {seconds:g} s")
