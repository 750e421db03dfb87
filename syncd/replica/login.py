"""A machine's login: made here, so that the server never sees the password."""

from __future__ import annotations

import secrets
from datetime import datetime
from typing import Any, NamedTuple

import psycopg
from psycopg.conninfo import make_conninfo

from syncd.replica import certificate, link


class Login(NamedTuple):
    """`dsn` has the password in it, and is shown once."""

    role: str
    verifier: str
    dsn: str


class Machine(NamedTuple):
    """A login as the replica lists it, with the devices that used it. `continues` has those of
    them that say they go on where another one ended, and which."""

    organization_id: str
    login: str
    name: str
    member: str
    kind: str
    revoked: bool
    reason: str | None
    last_seen: datetime | None
    devices: list[str]
    continues: dict[str, str]


def credentials(connection: psycopg.Connection[Any], role: str = "") -> Login:
    """A random password for a new role, or for one that there is, and how to connect with it."""
    role = role or f"syncd_login_{secrets.token_hex(16)}"
    password = secrets.token_urlsafe(24)
    with link.translated():
        encrypted = connection.pgconn.encrypt_password(
            password.encode(), role.encode(), b"scram-sha-256"
        )
    return Login(role, encrypted.decode(), _dsn(connection, role, password))


# What of the administrator's own connection holds for a member's too.
_SHARED = ("host", "port", "dbname", "sslmode", "sslrootcert", "channel_binding")


def _dsn(connection: psycopg.Connection[Any], role: str, password: str) -> str:
    given = connection.info.get_parameters()
    parts = {name: given[name] for name in _SHARED if given.get(name)}
    if parts.get("sslrootcert") == certificate.authorities():  # another system has its own
        parts["sslrootcert"] = certificate.SYSTEM
    info = connection.info
    host = parts.pop("host", "") or info.host
    port, database = parts.pop("port", None) or info.port, parts.pop("dbname", None) or info.dbname
    return _uri(host, str(port), database, role, password, parts)


def _uri(
    host: str, port: str, database: str, role: str, password: str, others: dict[str, Any]
) -> str:
    """As a URI where the host has a name; psql and psycopg take either form."""
    if host.startswith(("/", "@")) or "," in host:
        return make_conninfo(
            "", host=host, port=port, dbname=database, user=role, password=password, **others
        )
    from urllib.parse import quote, urlencode

    place = f"[{host}]" if ":" in host else host
    query = f"?{urlencode(others)}" if others else ""
    return f"postgresql://{role}:{quote(password)}@{place}:{port}/{quote(database)}{query}"
