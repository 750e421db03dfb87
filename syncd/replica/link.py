"""A connection to PostgreSQL: how it is reached, how it is protected, what its refusals mean."""

from __future__ import annotations

import ipaddress
import os
import re
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from syncd.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConfigError,
    DeviceTakenError,
    DivergedError,
    ImpostorError,
    LoginRefusedError,
    ReplicaError,
    ReplicaFullError,
    ReplicaOutdatedError,
    ReplicaReadOnlyError,
    ReplicaRefusedError,
    ReplicaUnreachableError,
    SyncdError,
    TLSRefusedError,
)
from syncd.replica import certificate

VERIFIED = "verify-full"
# What a user must write to do without: a value that cannot be set without reading it.
UNPROTECTED = "let-anyone-on-the-way-read-and-change-it"
_CONNECT_SECONDS = 10
# The server gives up a statement after 60 s: whoever is silent for longer than that is gone.
SILENCE_SECONDS = 75.0
_EXAMPLE = "For example: postgresql://USER:PASSWORD@HOST:5432/DATABASE"
# The roles that syncd makes have a SCRAM verifier, and begin so.
_OURS = ("syncd_login_", "syncd_installer")
T = TypeVar("T")


def connect(dsn: str, tls: str = VERIFIED) -> psycopg.Connection[Any]:
    """Open a connection in autocommit; PgBouncer in transaction mode may stand in between."""
    place = protected(dsn, tls)
    try:
        with translated():
            return _Connection.connect(place, autocommit=True, prepare_threshold=None)
    except TLSRefusedError as error:
        found = certificate.problem(parsed(place)) if _UNTRUSTED in error.message else None
        if found is None:
            raise
        raise TLSRefusedError(f"{_UNPROTECTABLE}: {found[0]}", found[1]) from None


class _Connection(psycopg.Connection[Any]):
    """One that gives up on a server which hangs: its machine still answers for it, so that no
    timeout of TCP notices, and it cannot heed its own."""

    def wait(self, gen: Generator[Any, Any, T], *options: Any, **named: Any) -> T:
        return super().wait(_impatient(gen), *options, **named)


def _impatient(work: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
    """Work on a connection, ended when nothing has come or gone for too long."""
    heard = time.monotonic()
    try:
        wanted = next(work)
        while True:
            ready = yield wanted
            if ready:
                heard = time.monotonic()
            elif time.monotonic() - heard > SILENCE_SECONDS:
                raise psycopg.OperationalError(f"no answer for {SILENCE_SECONDS:g} s")
            wanted = work.send(ready)
    except StopIteration as end:
        found: T = end.value
        return found


def parsed(dsn: str) -> dict[str, Any]:
    """Never says what it read: any part of it may be a piece of a password."""
    if not dsn.strip():
        raise ConfigError("the DSN is empty", _EXAMPLE)
    if any(ord(character) < ord(" ") for character in dsn):
        raise ConfigError("the DSN has a line break or control character in it", _EXAMPLE)
    try:
        parts = dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        raise ConfigError("this is not a PostgreSQL DSN", _EXAMPLE) from None
    if _torn(dsn, parts):
        raise ConfigError(
            "this DSN cannot be read: its password seems to have / or @ in it",
            "Write / as %2F, @ as %40 and % as %25.",
        )
    return parts


def _torn(dsn: str, parts: dict[str, Any]) -> bool:
    """Whether an unescaped password was taken for a host, a port or a database."""
    if not re.fullmatch(r"[0-9]*(,[0-9]*)*", str(parts.get("port", ""))):
        return True
    hosts, database = str(parts.get("host", "")), str(parts.get("dbname", ""))
    return "://" in dsn and ("@" in database or any("@" in h[1:] for h in hosts.split(",")))


def protected(dsn: str, tls: str = VERIFIED) -> str:
    """The DSN with what we add; refuses one that would send the data unprotected."""
    if tls not in (VERIFIED, UNPROTECTED):
        raise ConfigError(f"cloud.tls is {VERIFIED} or {UNPROTECTED}, not {tls!r}")
    parts = parsed(dsn)
    parts.setdefault("connect_timeout", _CONNECT_SECONDS)
    parts.setdefault("application_name", "syncd")
    # Notice a peer that vanished: laptops move between networks.
    parts.setdefault("keepalives_idle", 30)
    parts.setdefault("tcp_user_timeout", 30_000)
    if not _local(parts) and tls != UNPROTECTED:
        _verify(parts)
    elif str(parts.get("user", "")).startswith(_OURS):
        # Else whoever has taken the server's port could ask for the password, or for none and be
        # given the entries. A server that knows the verifier proves it without either.
        parts.setdefault("require_auth", "scram-sha-256")
    return make_conninfo("", **parts)


def _verify(parts: dict[str, Any]) -> None:
    """Have libpq make sure who is at the other end before anything is said. What is set here takes
    precedence over the environment."""
    for name, safe in (
        ("sslmode", (VERIFIED,)),
        ("ssl_min_protocol_version", ("TLSv1.2", "TLSv1.3")),
        # Where Kerberos is set up, libpq would prefer its protection, which names nobody's server.
        ("gssencmode", ("disable",)),
    ):
        given = parts.setdefault(name, safe[0])
        if given not in safe:
            raise ConfigError(
                f"{name}={given} does not make sure who is at the other end",
                f"Leave {name} out, or use an SSH tunnel. To do without all the same, set "
                f'cloud.tls = "{UNPROTECTED}".',
            )
    if parts.setdefault("sslrootcert", certificate.SYSTEM) == certificate.SYSTEM:
        parts["sslrootcert"] = certificate.authorities()


def _local(parts: dict[str, Any]) -> bool:
    """Whether everything named is this machine itself, in the DSN or where libpq looks besides.

    The name counts, not only the address: it is what the certificate is checked against.
    """
    if parts.get("service") or os.environ.get("PGSERVICE"):
        return False
    hosts = parts.get("host") or os.environ.get("PGHOST", "")
    addresses = parts.get("hostaddr") or os.environ.get("PGHOSTADDR", "")
    return all(_is_local(host) for host in f"{hosts},{addresses}".split(","))


def _is_local(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def at_port(dsn: str, port: int) -> str:
    """The same login to a server that has moved."""
    return make_conninfo(dsn, port=port)


def without_password(dsn: str) -> tuple[str, str]:
    """A DSN for the settings, and the password for a safer place."""
    parts = parsed(dsn)
    password = str(parts.pop("password", "") or "")
    return make_conninfo("", **parts), password


def with_password(dsn: str, password: str) -> str:
    """The two together again; without a password, libpq looks for one itself."""
    return make_conninfo(dsn, password=password) if password else dsn


def masked(dsn: str) -> str:
    """A DSN to show: never with its password, and readable even if it is none."""
    if not dsn:
        return ""
    try:
        parts = parsed(dsn)
    except ConfigError:
        return "(not a DSN)"
    for name in ("password", "sslpassword"):
        if parts.get(name):
            parts[name] = "***"
    return make_conninfo("", **parts)


# --- what a refusal means ---------------------------------------------------------------------

_STATES: dict[str, type[SyncdError]] = {
    "SY001": LoginRefusedError,
    "SY002": DeviceTakenError,
    "SY003": DivergedError,
    "SY004": ReplicaRefusedError,
    "SY005": LoginRefusedError,
    "SY006": ReplicaRefusedError,
    "SY010": CheckpointExistsError,
    "SY011": ReplicaRefusedError,
    "SY012": CheckpointNotFoundError,
    "25006": ReplicaReadOnlyError,
    "28000": LoginRefusedError,
    "28P01": LoginRefusedError,
    "3D000": ReplicaUnreachableError,
    "3F000": ReplicaOutdatedError,
    "42883": ReplicaOutdatedError,
    "42P01": ReplicaOutdatedError,
    "42501": ReplicaRefusedError,
    "53100": ReplicaFullError,
}
# What an entry itself can cause. All else says how the server is doing, and may be over soon.
_BY_CONTENT = ("21", "22", "23", "54")
_REVOKED = "this machine's login was revoked, by an administrator or from another machine of yours"
_REMEDIES = {
    "SY010": "Choose another name.",
    "SY012": "`syncd admin org list` and `syncd admin member list ORG` show what there is.",
    "42501": "Use the login of somebody who may: an administrator's in SYNCD_ADMIN_DSN.",
    _REVOKED: "For a new login, run `syncd device add` on another machine of yours or ask an "
    "administrator (`syncd admin device add`), then `syncd login`.",
}
_UNPROTECTABLE = "the connection cannot be protected"
_UNTRUSTED = "SSL error"
_WRONG_NAME = f"{_UNPROTECTABLE}: the server's certificate is for another name"
_NO_TLS = f"{_UNPROTECTABLE}: the server, or somebody on the way, offers no TLS"
_NO_FILE = f"{_UNPROTECTABLE}: the file that sslrootcert names is not there"
_ONLY_TLS = "the server takes only protected connections from this machine"
_REMEDIES |= {
    _WRONG_NAME: "Name the host in the DSN as its certificate does. If it does so, somebody else "
    "answers in its place.",
    _NO_TLS: "Have TLS switched on at the server (ssl = on), or use an SSH tunnel. If it is on, "
    "somebody on the way keeps it from you: try another network.",
    _NO_FILE: "Correct sslrootcert in the DSN, or leave it out: then the authorities that this "
    "system trusts are used.",
    _ONLY_TLS: 'Leave cloud.tls at "verify-full", and use the server\'s full name.',
}
# Before a session exists, libpq gives a text and no code.
_TEXTS: tuple[tuple[re.Pattern[str], type[ReplicaError], str], ...] = (
    (re.compile(r"password authentication failed|no password supplied|SASL authentication failed"),
     LoginRefusedError, "the replica refused the login: the password is wrong"),
    (re.compile(r"authentication method requirement|server signature"), ImpostorError,
     "whoever answers there does not prove to be the replica"),
    (re.compile(r"is not permitted to log in"), LoginRefusedError, _REVOKED),
    (re.compile(r"permission denied for database"), LoginRefusedError,
     "this login may not use that database"),
    (re.compile(r'database ".*" does not exist|no such database'), ReplicaUnreachableError,
     "the server has no such database"),
    (re.compile(r"no pg_hba.conf entry.*no encryption"), TLSRefusedError, _ONLY_TLS),
    (re.compile(r"no pg_hba.conf entry"), LoginRefusedError,
     "the server takes no such login from this machine"),
    (re.compile(r"SYSCALL|closed (the connection |)unexpectedly|unexpected eof|no answer for|"
                r"timeout expired"),
     ReplicaUnreachableError, "the connection to the replica broke"),
    (re.compile(r"does not match host name"), TLSRefusedError, _WRONG_NAME),
    (re.compile(r"does not support SSL"), TLSRefusedError, _NO_TLS),
    (re.compile(r"root certificate file .* does not exist"), TLSRefusedError, _NO_FILE),
    (re.compile(r"SSL|certificate|TLS", re.I), TLSRefusedError, _UNPROTECTABLE),
)  # fmt: skip
# What libpq advises where it advises the wrong thing: to start a server here, to check nothing.
_ADVICE = re.compile(r" Is the server running.*| Either provide the file.*")


@contextmanager
def translated() -> Iterator[None]:
    """PostgreSQL's errors as ours, with what to do. No secret is in their texts."""
    try:
        yield
    except psycopg.Error as error:
        raise _meaning(error) from None


def _meaning(error: psycopg.Error) -> Exception:
    text = " ".join(str(error.diag.message_primary or error).split())
    text = _ADVICE.sub("", text)
    state = error.sqlstate or ""
    if state in _STATES:
        return _STATES[state](_told(state, text), _REMEDIES.get(state))
    if state[:2] in _BY_CONTENT:
        return ReplicaError(f"the replica failed: {text} ({state})")
    if not state and not isinstance(error, psycopg.OperationalError):
        return ReplicaError(f"this cannot be sent: {text}")
    if state[:2] in ("08", "57") or not state:
        for pattern, kind, meaning in _TEXTS:
            if pattern.search(text):
                return kind(f"{meaning} ({text})", _REMEDIES.get(meaning))
        return ReplicaUnreachableError(f"the replica cannot be reached ({text})", _absent(text))
    return ReplicaUnreachableError(f"the replica cannot do it now ({text}, {state})")


def _absent(text: str) -> str | None:
    """On this machine it is most likely the embedded one, which somebody has to start."""
    if '"127.0.0.1"' not in text:
        return None
    return f"If it is the embedded one: `syncd cloud up`. {ReplicaUnreachableError.remedy}"


def _told(state: str, text: str) -> str:
    if state in ("3F000", "42883", "42P01"):
        return f"the replica lacks what this syncd needs ({text})"
    if state == "53100":
        return f"the replica's disk is full ({text})"
    if state == "42501":
        return f"the replica refused: this login may not do that ({text})"
    if state == "25006":
        return f"the replica is read-only ({text})"
    return f"the replica refused: {text}"
