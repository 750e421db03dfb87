"""A device that goes on under a new id and a new key, by the word of the old key.

Whoever has pinned the old key needs nobody else's word for the new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from syncd.entry import header_bytes
from syncd.seal import SigningKey, endorsement_valid

NOT_ENDORSED = "its key is not endorsed by the device that it says it continues"


class Succession(NamedTuple):
    """Which device ends, where its chain stands then, and who goes on with which key."""

    old: str
    device_seq: int
    chain: bytes
    new: str
    public_key: bytes

    def statement(self) -> bytes:
        """What the old key signs: a JSON array of texts, as a header is. The chain value stands
        for the number too."""
        return header_bytes((self.old, self.chain.hex(), self.new, self.public_key.hex()))

    def meta(self, old_key: SigningKey) -> dict[str, Any]:
        """Of the entry that tells it."""
        return {
            "task_id": "",
            "continues": {
                "device_id": self.old, "device_seq": self.device_seq, "chain": self.chain.hex(),
            },
            "public_key": self.public_key.hex(),
            "endorsement": old_key.endorse(self.statement()).hex(),
        }  # fmt: skip


def unendorsed(
    device_id: str, device_seq: int, entity_id: str, meta: dict[str, Any], keys: Mapping[str, bytes]
) -> str | None:
    """What is wrong with a key entry, or None.

    One that names another device than its own was moved there when two copies of a home parted:
    it is true of the id that it names, and says nothing of the device that has it now.

    The chain value is not compared with what is known of the old device. Of two copies of a home,
    one may have written on while the other changed its key: the old key has signed both.
    """
    try:
        said = meta["continues"]
        old, number, chain = said["device_id"], said["device_seq"], bytes.fromhex(said["chain"])
        public, word = bytes.fromhex(meta["public_key"]), bytes.fromhex(meta["endorsement"])
    except (KeyError, TypeError, ValueError):
        return "its meta is incomplete"
    if entity_id == device_id and (device_seq != 1 or keys.get(device_id) != public):
        return NOT_ENDORSED
    if old not in keys:
        return "the device that it says it continues is not known"
    told = Succession(old, number, chain, entity_id, public).statement()
    return None if endorsement_valid(keys[old], told, word) else NOT_ENDORSED
