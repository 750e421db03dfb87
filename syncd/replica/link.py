"""A connection to PostgreSQL: how it is reached, how it is protected, what its refusals mean."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from syncd.errors import (
    CheckpointExistsError,
    CheckpointNotFoundError,
    ConfigError,
    DivergedError,
    LoginRefusedError,
    ReplicaError,
    ReplicaFullError,
    ReplicaOutdatedError,
    ReplicaReadOnlyError,
    ReplicaRefusedError,
    ReplicaUnreachableError,
    TLSRefusedError,
)

VERIFIED = "verify-full"
# What a user must write to do without: a value that cannot be set without reading it.
UNPROTECTED = "let-anyone-on-the-way-read-and-change-it"
_CONNECT_SECONDS = 10


def connect(dsn: str, tls: str = VERIFIED) -> psycopg.Connection[Any]:
    """Open a connection in autocommit; PgBouncer in transaction mode may stand in between."""
    with translated():
        return psycopg.connect(protected(dsn, tls), autocommit=True, prepare_threshold=None)


def parsed(dsn: str) -> dict[str, Any]:
    try:
        return dict(conninfo_to_dict(dsn))
    except psycopg.ProgrammingError:
        # Its message repeats the DSN, which may have a password in it.
        raise ConfigError(
            "this is not a PostgreSQL DSN",
            "For example: postgresql://USER:PASSWORD@HOST:5432/DATABASE",
        ) from None


def protected(dsn: str, tls: str = VERIFIED) -> str:
    """The DSN with what we add; refuses one that would send the data unprotected."""
    parts = parsed(dsn)
    parts.setdefault("connect_timeout", _CONNECT_SECONDS)
    parts.setdefault("application_name", "syncd")
    # Notice a peer that vanished: laptops move between networks.
    parts.setdefault("keepalives_idle", 30)
    parts.setdefault("tcp_user_timeout", 30_000)
    if not _local(parts) and tls != UNPROTECTED:
        mode = parts.setdefault("sslmode", VERIFIED)
        if mode != VERIFIED:
            raise ConfigError(
                f"sslmode={mode} does not make sure who is at the other end",
                "Leave sslmode out, or use an SSH tunnel. To do without all the same, set "
                f'cloud.tls = "{UNPROTECTED}".',
            )
        parts.setdefault("sslrootcert", "system")
    return make_conninfo("", **parts)


def _local(parts: dict[str, Any]) -> bool:
    """Whether everything named is this machine itself."""
    named = parts.get("hostaddr") or parts.get("host") or ""
    return all(_is_local(host) for host in str(named).split(","))


def _is_local(host: str) -> bool:
    if not host or host.startswith(("/", "@")) or host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


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
    if parts.get("password"):
        parts["password"] = "***"  # noqa: S105 (this is what hides one)
    return make_conninfo("", **parts)


# --- what a refusal means ---------------------------------------------------------------------

_STATES: dict[str, type[Exception]] = {
    "SY001": LoginRefusedError,
    "SY002": ReplicaRefusedError,
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
# Before a session exists, libpq gives a text and no code.
_TEXTS = (
    (re.compile(r"password authentication failed|no password supplied", re.I), LoginRefusedError,
     "the replica refused the login: the password is wrong"),
    (re.compile(r"is not permitted to log in", re.I), LoginRefusedError,
     "this machine's login was revoked by an administrator"),
    (re.compile(r"permission denied for database", re.I), LoginRefusedError,
     "this login may not use that database"),
    (re.compile(r"SSL|certificate|TLS", re.I), TLSRefusedError,
     "the connection cannot be protected"),
)  # fmt: skip


@contextmanager
def translated() -> Iterator[None]:
    """PostgreSQL's errors as ours, with what to do. No secret is in their texts."""
    try:
        yield
    except psycopg.Error as error:
        raise _meaning(error) from None


def _meaning(error: psycopg.Error) -> Exception:
    text = " ".join(str(error.diag.message_primary or error).split())
    state = error.sqlstate or ""
    if state in _STATES:
        return _STATES[state](_told(state, text))
    if not state and not isinstance(error, psycopg.OperationalError):
        return ReplicaError(f"this cannot be sent: {text}")
    if state[:2] in ("08", "57") or not state:
        for pattern, kind, meaning in _TEXTS:
            if pattern.search(text):
                return kind(f"{meaning} ({text})")
        return ReplicaUnreachableError(f"the replica cannot be reached ({text})")
    return ReplicaError(f"the replica failed: {text} ({state})")


def _told(state: str, text: str) -> str:
    if state in ("3F000", "42883", "42P01"):
        return f"the replica lacks what this syncd needs ({text})"
    if state == "53100":
        return f"the replica's disk is full ({text})"
    if state == "25006":
        return f"the replica is read-only ({text})"
    return f"the replica refused: {text}"
