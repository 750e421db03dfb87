"""What runs in the processes of the fleet: devices that send, and devices that fetch."""

from __future__ import annotations

import heapq
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from psycopg.conninfo import make_conninfo

from scale.author import Author, templates
from scale.server import Machine
from syncd.examination import examine
from syncd.exchange import Head
from syncd.replica import Batch, Replica
from syncd.vault import Vault

TEMPLATES = 300
_CONNECTING = 8


class Sent(NamedTuple):
    """One batch: when it was to be sent, when that began, when the verdicts were there; the batch
    as the replica calls it, and its entries."""

    due: int
    began: int
    ended: int
    batch: str
    organization_id: str
    device_id: str
    first_seq: int
    cloud_seqs: list[int]
    refused: int


class Sender:
    """One device that sends what it has in store."""

    def __init__(self, machine: Machine, author: Author) -> None:
        self.machine, self.author = machine, author
        self.waiting: deque[Batch] = deque()
        self._replica: Replica | None = None

    def connect(self, port: int) -> None:
        self.close()
        self._replica = Replica(make_conninfo(self.machine.dsn, port=port))
        self._replica.hello(self.author.device_id, self.author.key.public())

    def send(self, due: int) -> Sent:
        """As a daemon does: one call for the batch, one to tell the others."""
        replica, batch = self._replica, self.waiting.popleft()
        if replica is None:
            raise AssertionError("a device must connect before it sends")
        began = time.monotonic_ns()
        verdicts = replica.push(batch)
        ended = time.monotonic_ns()
        replica.announce()
        refused = sum(found.verdict != "accepted" for found in verdicts)
        return Sent(due, began, ended, verdicts[0].batch, self.machine.organization_id,
                    batch.device_id, batch.device_seq, [found.cloud_seq for found in verdicts],
                    refused)  # fmt: skip

    def close(self) -> None:
        if self._replica is not None:
            self._replica.close()
            self._replica = None


class Senders:
    """Many devices in one process, each of which sends when it is its turn."""

    def __init__(self, machines: Sequence[Machine], threads: int) -> None:
        kinds = templates(TEMPLATES)
        self._devices = [Sender(machine, Author(kinds)) for machine in machines]
        self._threads = threads

    def write(self, batches: int, size: int) -> None:
        """Before the clock runs."""
        for device in self._devices:
            device.waiting.extend(device.author.batch(size) for _ in range(batches))

    def connect(self, port: int) -> None:
        with ThreadPoolExecutor(_CONNECTING) as pool:
            list(pool.map(lambda device: device.connect(port), self._devices))

    def disconnect(self) -> None:
        for device in self._devices:
            device.close()

    def send(self, start: int, period: float, spread: float, turns: int) -> list[Sent]:
        """`turns` batches of each device, one each `period` seconds after `start`."""
        chosen = random.Random(0)
        queue = [
            (start + int(chosen.random() * spread * period * 1e9), place, turns)
            for place in range(len(self._devices))
        ]
        heapq.heapify(queue)
        lock, sent = threading.Lock(), list[Sent]()

        def work() -> None:
            while True:
                with lock:
                    if not queue:
                        return
                    due, place, left = heapq.heappop(queue)
                time.sleep(max(0.0, (due - time.monotonic_ns()) / 1e9))
                found = self._devices[place].send(due)
                with lock:
                    sent.append(found)
                    if left > 1:
                        heapq.heappush(queue, (due + int(period * 1e9), place, left - 1))

        with ThreadPoolExecutor(self._threads) as pool:
            for done in [pool.submit(work) for _ in range(self._threads)]:
                done.result()
        return sent

    def chains(self) -> dict[str, list[bytes]]:
        """What each device has written, sent or not."""
        return {device.author.device_id: device.author.chains for device in self._devices}


# --- fetching -----------------------------------------------------------------------------------


class Copy(NamedTuple):
    """What one device has fetched of its organization: when each batch was there, each entry's
    place, and what was wrong with it."""

    organization_id: str
    arrived: dict[str, int]
    entries: list[tuple[int, str, int, bytes]]
    problems: list[str]


class Fetcher:
    """One device that looks for news again and again, and examines it as every client does."""

    def __init__(self, machine: Machine, port: int) -> None:
        author = Author(())
        self._device_id = author.device_id
        self._replica = Replica(make_conninfo(machine.dsn, port=port))
        self._replica.hello(self._device_id, author.key.public())
        self._keys: dict[str, bytes] = {}
        self._heads: dict[str, Head] = {}
        self._vault = Vault()
        self._cursor: tuple[int, str | None] = (0, None)
        self.copy = Copy(machine.organization_id, {}, [], [])

    def look(self) -> bool:
        """Whether there was anything."""
        page = self._replica.pull(self._device_id, *self._cursor, 0)
        now = time.monotonic_ns()
        if not page:
            return False
        if any(row.device_id not in self._keys for row in page):
            self._keys = self._replica.keys()
        for found in examine(page, self._heads, self._keys, self._vault):
            row = found.row
            self.copy.arrived.setdefault(row.batch, now)
            self.copy.entries.append((row.cloud_seq, row.device_id, row.device_seq, row.chain))
            if found.problem or row.refused:
                self.copy.problems.append(f"{row.entry_id}: {found.problem or row.refused}")
        self._cursor = (page[-1].cloud_seq, page[-1].batch)
        return True

    def close(self) -> None:
        self._replica.close()


class Fetchers:
    """Many of them in one process."""

    def __init__(self, machines: Sequence[Machine]) -> None:
        self._machines = machines
        self._devices: list[Fetcher] = []
        self._stop = threading.Event()
        self._pool: ThreadPoolExecutor | None = None

    def fetch(self, port: int, pause: float) -> None:
        """Begin; what one device asks for does not hold up another."""
        self._devices = [Fetcher(machine, port) for machine in self._machines]
        self._pool = ThreadPoolExecutor(len(self._devices))
        self._loops = [self._pool.submit(self._loop, each, pause) for each in self._devices]

    def _loop(self, device: Fetcher, pause: float) -> None:
        """Ends with a look that finds nothing after everybody has sent all."""
        while True:
            last = self._stop.is_set()
            if not device.look():
                if last:
                    return
                self._stop.wait(pause)
            elif not last:
                self._stop.wait(pause)

    def copies(self) -> list[Copy]:
        self._stop.set()
        for loop in self._loops:
            loop.result()
        for device in self._devices:
            device.close()
        return [device.copy for device in self._devices]
