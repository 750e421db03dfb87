"""A real PgBouncer in transaction mode."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from psycopg.conninfo import make_conninfo

from syncd import account, cluster

PROGRAM = shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")
_START_SECONDS = 20.0


class Pooler:
    """One PgBouncer before a server. It asks the server for the logins' verifiers."""

    def __init__(
        self, port: int, password: str, folder: Path, pool_size: int,
        tls: tuple[Path, Path] | None = None,
    ) -> None:  # fmt: skip
        """`port` and the superuser's `password` are the server's. `tls`: a certificate and its
        key, with which it takes protected connections only."""
        self.port = cluster.free_port()
        cluster.make_folder(folder)
        cluster.make_own(folder / "pooler")
        self._folder = folder / "pooler"
        self.log = self._folder / "log"
        users = self._folder / "users"
        users.write_text(f'"{cluster.SUPERUSER}" "{password}"\n')
        self._settings = self._folder / "settings"
        self._settings.write_text(self._told(port, users, pool_size) + self._protection(tls))
        self.start()

    def _told(self, port: int, users: Path, pool_size: int) -> str:
        server = f"host={cluster.HOST} port={port} auth_user={cluster.SUPERUSER}"
        return f"""
[databases]
* = {server}
[pgbouncer]
listen_addr = {cluster.HOST}
listen_port = {self.port}
unix_socket_dir =
auth_type = scram-sha-256
auth_file = {users}
auth_query = SELECT usename, passwd FROM pg_shadow WHERE usename = $1
pool_mode = transaction
default_pool_size = {pool_size}
logfile = {self.log}
server_tls_sslmode = disable
server_login_retry = 1
"""

    def _protection(self, tls: tuple[Path, Path] | None) -> str:
        if tls is None:
            return ""
        lines = ["client_tls_sslmode = require"]
        for name, file in zip(("cert", "key"), tls, strict=True):
            shutil.copy(file, self._folder / name)
            lines.append(f"client_tls_{name}_file = {self._folder / name}")
        return "\n".join(lines) + "\n"

    @property
    def pid(self) -> int:
        return self._process.pid

    def start(self) -> None:
        """As root it wants another user, who reads what he must and nothing else."""
        words = [str(PROGRAM), "-q"]
        if user := account.server_user():
            for file in self._folder.iterdir():
                os.chown(file, user.pw_uid, user.pw_gid)
            words += ["-u", user.pw_name]
        self._process = subprocess.Popen([*words, str(self._settings)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + _START_SECONDS
        while not listens(self.port):
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"PgBouncer does not start: {self.log.read_text()[-2_000:]}")
            time.sleep(0.02)

    def close(self, how: signal.Signals = signal.SIGTERM) -> None:
        self._process.send_signal(how)
        self._process.wait()

    def before(self, dsn: str) -> str:
        """The same login, through the pooler."""
        return make_conninfo(dsn, port=self.port)


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((cluster.HOST, port)) == 0
