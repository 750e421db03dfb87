"""Whom a server's certificate is checked against, and what is wrong with one that fails."""

from __future__ import annotations

import os
import socket
import ssl
from contextlib import closing
from pathlib import Path
from typing import Any

SYSTEM = "system"
# Where systems keep the authorities that they trust, in one file.
_BUNDLES = (
    "/etc/ssl/certs/ca-certificates.crt",
    "/etc/pki/tls/certs/ca-bundle.crt",
    "/etc/ssl/ca-bundle.pem",
    "/etc/ssl/cert.pem",
)
_TLS_REQUEST = bytes.fromhex("0000000804d2162f")
_SECONDS = 5.0
_ASK = "Get its certificate from the server's administrator, by a way that you trust, and name it"
_NAME_IT = f"{_ASK} in the DSN: sslrootcert=FILE."
_STRANGE = (
    "the server's certificate is of an authority that is not trusted here",
    f"Perhaps it is not the server that answers. {_NAME_IT}",
)
# By OpenSSL's numbers.
_PROBLEMS = {
    7: _STRANGE,  # it only bears the name of one that is
    9: (
        "the server's certificate is not valid yet",
        "See whether this machine's clock is right; if it is, the server's administrator has to "
        "install another certificate.",
    ),
    10: (
        "the server's certificate has expired",
        "The server's administrator has to renew it. See whether this machine's clock is right.",
    ),
    18: ("the server's certificate is signed by itself, and nobody here vouches for it", _NAME_IT),
    19: _STRANGE,
    20: _STRANGE,
}


def authorities() -> str:
    """The authorities that this system trusts, as libpq's `sslrootcert`.

    libpq looks for them where the OpenSSL that it was built with does. The one that comes with
    psycopg was built for a folder that no system has, so that it finds none unless it is told.
    """
    if os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR"):
        return SYSTEM
    python = ssl.get_default_verify_paths().cafile
    found = (file for file in (python, *_BUNDLES) if file and Path(file).is_file())
    return next(found, SYSTEM)


def problem(parts: dict[str, Any]) -> tuple[str, str] | None:
    """What is wrong with the certificate that a server shows, and what to do about it: libpq only
    says that something is. Nothing is sent but the request for TLS."""
    try:
        with closing(_connected(parts)) as plain:
            plain.sendall(_TLS_REQUEST)
            if plain.recv(1) == b"S":
                _context(str(parts["sslrootcert"])).wrap_socket(plain).close()
    except ssl.SSLCertVerificationError as error:
        said = f"the server's certificate is not accepted: {error.verify_message}"
        return _PROBLEMS.get(error.verify_code, (said, _NAME_IT))
    except (OSError, ValueError):
        return None
    return None


def _connected(parts: dict[str, Any]) -> socket.socket:
    """The first server that a DSN names."""
    place = str(parts.get("hostaddr") or parts.get("host", "")).split(",")[0]
    port = str(parts.get("port") or 5432).split(",")[0]
    return socket.create_connection((place, int(port)), timeout=_SECONDS)


def _context(trusted: str) -> ssl.SSLContext:
    """Without the name: of that libpq says itself what is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    if trusted == SYSTEM:
        context.load_default_certs()
    else:
        context.load_verify_locations(trusted)
    return context
