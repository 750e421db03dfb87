"""One PostgreSQL cluster on this machine: its files, its passwords, its processes.

A cluster lives in a folder `base`: `data`, `log` and `run` (the socket) belong to the server,
`passfile` and `pg_hba.conf` to whoever administers it. As root these are two users, because
PostgreSQL refuses root.
"""

from __future__ import annotations

import os
import random
import secrets
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from syncd.account import is_root, server_user
from syncd.errors import EmbeddedError

SUPERUSER = "postgres"
ADMINISTRATOR = "syncd_installer"
DATABASE = "syncd"
HOST = "127.0.0.1"

# Below the ports that systems give to outgoing connections: a port that is kept must not be
# taken by chance while the server is stopped.
_PORTS = range(20_000, 32_000)
_LONGEST_SOCKET = 100
# More than any system's largest process number.
_NOBODY = 2**31 - 1
_START_SECONDS = 300
_CHILDREN_SECONDS = 10
_STOP_SECONDS = 60

_HBA = f"""\
local all all scram-sha-256
host all all {HOST}/32 scram-sha-256
"""


def dsn(base: Path, port: int, role: str = ADMINISTRATOR, database: str = DATABASE) -> str:
    """How to connect; the password stays in the file that this names."""
    return f"postgresql://{role}@{HOST}:{port}/{database}?passfile={quote(str(base / 'passfile'))}"


# --- creating it ----------------------------------------------------------------------------------


def initialise(base: Path, program: Path, version: str, *, durable: bool = True) -> None:
    """Fill `base` with a cluster: its data, its rules of access and its passwords."""
    for name in ("data", "run", "log"):
        make_own(base / name)
    write(base / "pg_hba.conf", _HBA, mode=0o644)
    passwords = {role: secrets.token_urlsafe(24) for role in (SUPERUSER, ADMINISTRATOR)}
    write(base / "passfile", "".join(f"*:*:*:{r}:{p}\n" for r, p in passwords.items()))
    program = _reachable(base, program)
    # Without a password initdb allows no scram; the rules that count are those of pg_hba.conf.
    options = ["--auth=reject", "--data-checksums", "--encoding=UTF8", *_locale(version)]
    if not durable:
        options.append("--no-sync")
    _run(program / "initdb", "-D", base / "data", "-U", SUPERUSER, *options)
    _run(
        program / "postgres", "--single", "-D", base / "data",
        # Without these a failed statement is printed with its password, and passed over.
        "-c", "log_min_error_statement=panic", "-c", "exit_on_error=on",
        *([] if durable else ["-F"]),
        "postgres",
        stdin=_first_statements(passwords),
    )  # fmt: skip


def _first_statements(passwords: Mapping[str, str]) -> str:
    """Single-user mode takes one statement per line."""
    return f"""\
ALTER ROLE {SUPERUSER} PASSWORD '{passwords[SUPERUSER]}'
CREATE ROLE {ADMINISTRATOR} LOGIN CREATEROLE PASSWORD '{passwords[ADMINISTRATOR]}'
CREATE DATABASE {DATABASE}
GRANT CONNECT, CREATE ON DATABASE {DATABASE} TO {ADMINISTRATOR}
"""


def _locale(version: str) -> list[str]:
    """Order by code point on every system; letters beyond ASCII have case where they can."""
    if int(version) < 17:
        return ["--locale=C"]
    return ["--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8"]


# --- running it ---------------------------------------------------------------------------------


def start(base: Path, program: Path, port: int, options: Mapping[str, str] | None = None) -> None:
    """Start the server unless it runs, and return when it takes connections."""
    if postmaster(base) is not None:
        _wait_until_ready(base)
        return
    crashed = _pid(base) is not None
    _disown_pid(base)
    settings = {**_settings(base, port), **(options or {})}
    program = _reachable(base, program)
    # A killed server's children hold its port and memory until they notice.
    deadline = time.monotonic() + (_CHILDREN_SECONDS if crashed else 0)
    while True:
        try:
            _pg_ctl_start(base, program, settings)
            return
        except EmbeddedError:
            if time.monotonic() >= deadline:
                raise
            time.sleep(0.1)


def _settings(base: Path, port: int) -> dict[str, str]:
    return {
        "listen_addresses": HOST,
        "port": str(port),
        "unix_socket_directories": str(_socket_folder(base)),
        "unix_socket_permissions": "0700",
        "hba_file": str(base / "pg_hba.conf"),
        # Each machine keeps one, to be told of news.
        "max_connections": "300",
        # The text of a failed statement may hold a password.
        "log_min_error_statement": "panic",
        "log_checkpoints": "off",
    }


def _pg_ctl_start(base: Path, program: Path, settings: Mapping[str, str]) -> None:
    """pg_ctl hands its arguments to a shell unquoted, so that no path may be among them."""
    refuse_taken(int(settings["port"]))
    words = shlex.join(word for item in settings.items() for word in ("-c", "=".join(item)))
    _run(
        program / "pg_ctl", "start", "-w", "-s", "-t", _START_SECONDS,
        "-l", "log/postgres.log", "-o", words,
        folder=base, environment={"PGDATA": str(base / "data")}, log=base / "log" / "postgres.log",
    )  # fmt: skip


def stop(base: Path, how: signal.Signals = signal.SIGINT) -> bool:
    """Stop the server, by default ending its connections; False if it did not run."""
    pid = postmaster(base)
    if pid is None:
        return False
    os.kill(pid, how)
    deadline = time.monotonic() + _STOP_SECONDS
    while _is_postgres(pid):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"PostgreSQL (process {pid}) did not stop in {_STOP_SECONDS} s",
                "Close the programs that use it, then run the command again.",
            )
        time.sleep(0.02)
    return True


def postmaster(base: Path) -> int | None:
    """The server's process, if it is alive."""
    pid = _pid(base)
    return pid if pid is not None and _is_postgres(pid) else None


def _pid(base: Path) -> int | None:
    try:
        return int(_pid_file(base)[0])
    except (FileNotFoundError, ValueError, IndexError):
        return None


def _pid_file(base: Path) -> list[str]:
    return (base / "data" / "postmaster.pid").read_text("utf-8").splitlines()


def _is_postgres(pid: int) -> bool:
    """After a crash another program may have the number; a zombie has no command line."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_text("utf-8", errors="replace").split("\0")
    except (FileNotFoundError, ProcessLookupError):
        if Path("/proc/self").exists():
            return False
        asked = subprocess.run(["ps", "-p", str(pid), "-o", "comm="], capture_output=True)
        words = [asked.stdout.decode(errors="replace").strip()]
    return Path(words[0]).name == "postgres"


def _disown_pid(base: Path) -> None:
    """PostgreSQL refuses to start while any process has the number that its file names.

    That may be another program since, or a zombie where nobody reaps them (in containers). The
    rest of the file stays: by it PostgreSQL finds children that outlived a killed server.
    """
    if (pid := _pid(base)) is not None:
        file = base / "data" / "postmaster.pid"
        file.write_text(file.read_text("utf-8").replace(str(pid), str(_NOBODY), 1), "utf-8")


def _wait_until_ready(base: Path) -> None:
    """Whoever started it may have been killed while it was still recovering."""
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and postmaster(base) is not None:
        if [line.strip() for line in _pid_file(base)[7:8]] == ["ready"]:
            return
        time.sleep(0.05)
    raise EmbeddedError(
        f"PostgreSQL does not become ready: {_tail(base / 'log' / 'postgres.log')}",
        "`syncd cloud down`, then `syncd cloud up`.",
    )


def _socket_folder(base: Path) -> Path:
    """Empty, and only for its owner; elsewhere if the path is longer than a socket's may be.

    A comma would separate two folders, for the server as for its clients.
    """
    run = base / "run"
    shutil.rmtree(run.resolve(), ignore_errors=True)
    run.unlink(missing_ok=True)
    if "," in str(run) or len(os.fsencode(run / ".s.PGSQL.65535")) > _LONGEST_SOCKET:
        run.symlink_to(tempfile.mkdtemp(dir="/tmp", prefix="syncd-"))
    make_own(run)
    return run.resolve()


# --- ports --------------------------------------------------------------------------------------


def free_port() -> int:
    return next(port for port in random.sample(_PORTS, 1_000) if not is_taken(port))


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return True
    return False


def refuse_taken(port: int) -> None:
    if is_taken(port):
        raise EmbeddedError(
            f"port {port} of {HOST} is taken by another program",
            "Stop that program, or choose a port with `syncd cloud up --port N`; logins made "
            "before contain the old one: `syncd cloud try` corrects that of this home.",
        )


# --- files --------------------------------------------------------------------------------------


def write(file: Path, text: str, mode: int = 0o600) -> None:
    """All of it or nothing, and with its mode from the beginning."""
    fresh = file.with_name(file.name + ".new")
    fresh.unlink(missing_ok=True)
    with open(fresh, "x", encoding="utf-8", opener=lambda p, f: os.open(p, f, mode)) as out:
        os.fchmod(out.fileno(), mode)
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    fresh.replace(file)
    sync(file.parent)


def sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """And those above it that are missing, each as open as the server needs it."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        let_server_through(path)


def let_server_through(folder: Path) -> None:
    """As root the server's user must get to what it owns inside; nobody else gets more."""
    folder.chmod(0o711 if is_root() else 0o700)


def make_own(folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    folder.chmod(0o700)
    if (user := server_user()) is not None:
        os.chown(folder, user.pw_uid, user.pw_gid)


# --- programs -----------------------------------------------------------------------------------

# initdb has a shell start the server's program, by its name within quotation marks.
_SPECIAL = frozenset('"$`\\')


def _reachable(base: Path, program: Path) -> Path:
    """As root: a copy of the programs if the server's user cannot get at them."""
    if server_user() is None or _starts(program):
        return program
    copy = base / "program"
    if _SPECIAL.intersection(str(copy)):
        raise EmbeddedError(
            f"PostgreSQL's programs cannot be started in {base}, as a shell has a use of its own "
            "for characters of this name",
            "Name another folder (SYNCD_CLOUD_FOLDER), or install syncd where all may read it.",
        )
    try:
        return _copied(program, copy)
    except shutil.Error as error:
        why = error.args[0][-1][-1]
        raise EmbeddedError(f"PostgreSQL's programs cannot be copied: {why}") from None


def _copied(program: Path, copy: Path) -> Path:
    shutil.rmtree(copy, ignore_errors=True)
    package = program.parent.parent
    here = copy / package.name / program.parent.name
    shutil.copytree(program.parent, here, symlinks=True)
    # Where the programs look for their libraries, seen from their own place.
    libraries = f"{package.name}.libs"
    shutil.copytree(package.parent / libraries, copy / libraries)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755)
    return here / "bin"


def _starts(program: Path) -> bool:
    try:
        _run(program / "postgres", "--version")
    except EmbeddedError:
        return False
    return True


def _run(
    program: Path,
    *arguments: object,
    stdin: str = "",
    folder: Path = Path("/"),
    environment: Mapping[str, str] | None = None,
    log: Path | None = None,
) -> None:
    """Run one of PostgreSQL's programs as the server's user, with nothing of our environment."""
    user = server_user()
    mark = log.stat().st_size if log and log.exists() else 0
    ids: dict[str, Any] = {}
    if user is not None:
        ids = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    try:
        done = subprocess.run(
            [program, *map(str, arguments)], input=stdin, capture_output=True, text=True,
            cwd=folder, umask=0o077, env={"PATH": os.defpath, "LC_ALL": "C", **(environment or {})},
            **ids,
        )  # fmt: skip
    except OSError as error:
        raise EmbeddedError(f"{program} does not start: {error.strerror}") from None
    if done.returncode != 0:
        said = _tail(log, mark) if log and log.exists() else ""
        raise EmbeddedError(f"{program.name} failed: {said or _last_lines(done.stderr)}")


def _tail(log: Path, mark: int = 0) -> str:
    """The end of what was added to the log after the mark."""
    return _last_lines(log.read_bytes()[mark:].decode(errors="replace"))


def _last_lines(text: str) -> str:
    return "; ".join([line.strip() for line in text.splitlines() if line.strip()][-4:])
