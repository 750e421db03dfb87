"""Nothing missed? What devices wrote, against the replica's logs and all copies, in full."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from scale.devices import Copy, Sent

# cloud_seq, device, its number, chain value
Row = tuple[int, str, int, bytes]


class Check(NamedTuple):
    """`entries` are in the log. What follows should be zero: numbers that are missing between the
    first and the last, acknowledged entries that are not where the replica said, entries that no
    device acknowledged, entries that a copy lacks or has otherwise, and those that were refused."""

    entries: int
    copies: int
    gaps: int
    lost: int
    foreign: int
    not_copied: int
    refused: int

    @property
    def missed(self) -> int:
        return self.gaps + self.lost + self.foreign + self.not_copied + self.refused


def compared(
    logs: Mapping[str, Sequence[Row]], written: Mapping[str, list[bytes]], sent: Iterable[Sent],
    copies: Sequence[Copy],
) -> Check:  # fmt: skip
    sent = list(sent)
    acknowledged = _acknowledged(sent, written)
    kept = {organization: set(rows) for organization, rows in logs.items()}
    empty: set[Row] = set()
    return Check(
        sum(map(len, logs.values())),
        len(copies),
        sum(_gaps(rows) for rows in logs.values()),
        sum(len(rows - kept.get(name, empty)) for name, rows in acknowledged.items()),
        sum(len(rows - acknowledged.get(name, empty)) for name, rows in kept.items()),
        sum(len(kept.get(copy.organization_id, empty) ^ set(copy.entries)) + len(copy.problems)
            for copy in copies),
        sum(each.refused for each in sent),
    )  # fmt: skip


def _acknowledged(sent: Sequence[Sent], written: Mapping[str, list[bytes]]) -> dict[str, set[Row]]:
    """Each entry where the verdict has placed it, with the chain value that its device made."""
    found: dict[str, set[Row]] = {}
    for each in sent:
        chains = written[each.device_id]
        found.setdefault(each.organization_id, set()).update(
            (cloud_seq, each.device_id, seq, chains[seq - 1])
            for seq, cloud_seq in enumerate(each.cloud_seqs, start=each.first_seq)
        )
    return found


def _gaps(rows: Sequence[Row]) -> int:
    """Numbers begin at 1, and none is left out or given twice."""
    numbers = [row[0] for row in rows]
    return len(set(range(1, len(numbers) + 1)) ^ set(numbers)) + len(numbers) - len(set(numbers))
