"""The replica's PostgreSQL: a cluster of its own, that is killed and started again."""

from __future__ import annotations

import signal
from contextlib import closing
from pathlib import Path
from typing import Any

import psycopg

from chaos import processes
from syncd import cluster, embedded

# What is committed survives the death of every process, which is all that happens here.
_OPTIONS = {"fsync": "off", "full_page_writes": "off"}


class Server:
    def __init__(self, base: Path) -> None:
        self.base = base
        self.port = cluster.free_port()
        self._programs = embedded.binaries(embedded.DEFAULT_VERSION)
        cluster.make_folder(base)
        cluster.initialise(base, self._programs, embedded.DEFAULT_VERSION, durable=False)
        self.start()

    def start(self) -> None:
        cluster.start(self.base, self._programs, self.port, _OPTIONS)

    def stop(self, how: signal.Signals) -> bool:
        """Whether it was running."""
        return cluster.stop(self.base, how)

    @property
    def pid(self) -> int | None:
        return cluster.postmaster(self.base)

    def backends(self) -> list[int]:
        """The processes that serve clients, and those that work for the server."""
        return [p.pid for p in processes.children(self.pid)] if self.pid else []

    @property
    def admin_dsn(self) -> str:
        return cluster.dsn(self.base, self.port)

    @property
    def password(self) -> str:
        lines = (self.base / "passfile").read_text().splitlines()
        return dict(line.split(":")[3:5] for line in lines)[cluster.SUPERUSER]

    def sql(self, text: str) -> list[tuple[Any, ...]]:
        """As superuser; the rows of the last statement, if it has any."""
        dsn = cluster.dsn(self.base, self.port, cluster.SUPERUSER)
        with closing(psycopg.connect(dsn, autocommit=True)) as connection:
            cursor = connection.execute(text.encode())
            return cursor.fetchall() if cursor.description else []
