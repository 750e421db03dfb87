"""The form of a bundle: lines of JSON, each of them in one form only.

The first names the task, the devices and their keys; the last is the exporter's signature over all
before it; between them are the entries of the task, device by device.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

import orjson

from syncd.entry import Entry
from syncd.seal import fingerprint

FORMAT = "syncd bundle 1"
# Before the digest that is signed. What is signed of a chain is longer, so that neither signature
# can pass for the other.
_SEAL_DOMAIN = b"syncd bundle 1\0"
MANIFEST, ENTRY, LINK, PURGED_BY, SEAL = "bundle", "entry", "link", "purge", "seal"


class Line(NamedTuple):
    """An entry of the task; or a *link*, which is what is needed of another task's."""

    kind: str
    header: list[str]
    hash: str
    previous: bytes
    chain: bytes
    signature: bytes | None
    body: bytes | None = None
    purged: str | None = None
    refused: str | None = None
    cloud_seq: int | None = None

    @property
    def entry_id(self) -> str:
        return self.header[0]

    @property
    def device_id(self) -> str:
        return self.header[1]

    @property
    def device_seq(self) -> int:
        return int(self.header[2])

    @property
    def entity(self) -> str:
        return self.header[3]

    @property
    def op(self) -> str:
        return self.header[5]

    @property
    def key_id(self) -> str:
        return self.header[10]

    @property
    def meta(self) -> str:
        return self.header[11]


class Tip(NamedTuple):
    """The newest entry of a device that it vouches for."""

    device_seq: int
    chain: bytes
    signature: bytes


class Device(NamedTuple):
    """Whose entries are in the file, and which. `links` counts those of other tasks."""

    device_id: str
    public_key: bytes
    entries: list[str]
    links: int
    tip: Tip | None


class Manifest(NamedTuple):
    """The first line. `replica` is what was known of it."""

    task_id: str
    exported_at: str
    exported_by: str
    replica: dict[str, Any] | None
    devices: list[Device]


# --- writing ------------------------------------------------------------------------------------


def line_of(entry: Entry, kind: str, signature: bytes | None) -> Line:
    header = [str(field) for field in entry[1:13]]
    proof = (entry.hash, entry.previous, entry.chain, signature)
    if kind != ENTRY:
        return Line(kind, header, *proof)
    gone = entry.purged is not None or (entry.refused is not None and not entry.body)
    body = None if gone else entry.body
    return Line(kind, header, *proof, body, entry.purged, entry.refused, entry.cloud_seq)


def entry_bytes(line: Line) -> bytes:
    content: dict[str, Any] = {
        "header": line.header, "hash": line.hash, "previous": line.previous.hex(),
        "chain": line.chain.hex(), "signature": line.signature.hex() if line.signature else None,
    }  # fmt: skip
    if line.kind == ENTRY:
        content |= {"purged": line.purged, "refused": line.refused, "cloud_seq": line.cloud_seq}
        content |= _body_fields(line.body)
    return _bytes(line.kind, content)


def _body_fields(body: bytes | None) -> dict[str, str | None]:
    """As text, which it nearly always is; others may have written anything."""
    try:
        return {"body": None if body is None else body.decode()}
    except UnicodeDecodeError:
        return {"body_base64": base64.b64encode(body or b"").decode()}


def manifest_bytes(manifest: Manifest) -> bytes:
    devices = [
        {
            "device_id": device.device_id, "public_key": device.public_key.hex(),
            "fingerprint": fingerprint(device.public_key), "entries": device.entries,
            "links": device.links, "tip": _tip_fields(device.tip),
        }
        for device in manifest.devices
    ]  # fmt: skip
    return _bytes(MANIFEST, {"format": FORMAT, **manifest._asdict(), "devices": devices})


def _tip_fields(tip: Tip | None) -> dict[str, Any] | None:
    if tip is None:
        return None
    number, chain, signature = tip
    return {"device_seq": number, "chain": chain.hex(), "signature": signature.hex()}


def seal_bytes(content_digest: bytes, signature: bytes) -> bytes:
    return _bytes(SEAL, {"sha256": content_digest.hex(), "signature": signature.hex()})


def to_be_sealed(content_digest: bytes) -> bytes:
    """What the exporter signs in place of a chain value."""
    return hashlib.sha256(_SEAL_DOMAIN + content_digest).digest()


def _bytes(kind: str, content: dict[str, Any]) -> bytes:
    """One form for one content: names in order, no blanks."""
    option = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return orjson.dumps({kind: content}, option=option)


# --- reading ------------------------------------------------------------------------------------


class MalformedError(Exception):
    """A line that no export has written."""


_MAYBE_TEXT = (str, type(None))
_PROOF = {"header": (list,), "hash": (str,), "previous": (str,), "chain": (str,),
          "signature": _MAYBE_TEXT}  # fmt: skip
_PLACE = {"purged": _MAYBE_TEXT, "refused": _MAYBE_TEXT, "cloud_seq": (int, type(None))}
_TIP = {"device_seq": (int,), "chain": (str,), "signature": (str,)}
_DEVICE = {"device_id": (str,), "public_key": (str,), "fingerprint": (str,), "entries": (list,),
           "links": (int,), "tip": (dict, type(None))}  # fmt: skip
_MANIFEST = {"format": (str,), "task_id": (str,), "exported_at": (str,), "exported_by": (str,),
             "replica": (dict, type(None)), "devices": (list,)}  # fmt: skip
_SEAL = {"sha256": (str,), "signature": (str,)}
Shape = Mapping[str, tuple[type, ...]]


def opened(raw: bytes) -> tuple[str, Any]:
    """The kind of a line, and its content, if it is in the one form that it can have."""
    if not raw.endswith(b"\n"):
        raise MalformedError("it has no end: the file was cut off, or is not a bundle")
    try:
        document = orjson.loads(raw)
    except ValueError:
        raise MalformedError("it is not JSON") from None
    if not isinstance(document, dict) or len(document) != 1:
        raise MalformedError("it is not a line of a bundle")
    [(kind, content)] = document.items()
    try:
        if _bytes(kind, content) != raw:
            raise MalformedError("it is not in the form in which syncd writes it")
    except TypeError:
        raise MalformedError("it is nested too deeply") from None
    return kind, content


def _shaped(content: Any, *shapes: Shape) -> dict[str, Any]:
    wanted = {name: kinds for shape in shapes for name, kinds in shape.items()}
    if not isinstance(content, dict) or content.keys() != wanted.keys():
        raise MalformedError("it has other fields than it should")
    for name, kinds in wanted.items():
        if type(content[name]) not in kinds:
            raise MalformedError(f"its field {name} is of another kind than it should be")
    return content


def _unhexed(text: str, size: int, what: str) -> bytes:
    try:
        value = bytes.fromhex(text)
    except ValueError:
        value = b""
    if len(value) != size or value.hex() != text:
        raise MalformedError(f"its {what} is not one of {size} bytes")
    return value


def line_in(kind: str, content: Any) -> Line:
    encoded = isinstance(content, dict) and "body_base64" in content
    body: Shape = {"body_base64": (str,)} if encoded else {"body": _MAYBE_TEXT}
    fields = _shaped(content, _PROOF, *((_PLACE, body) if kind == ENTRY else ()))
    header = fields["header"]
    if len(header) != 12 or any(type(text) is not str for text in header):
        raise MalformedError("its header is not one of twelve texts")
    if not header[2].isascii() or not header[2].isdigit() or len(header[2]) > 18:
        raise MalformedError("its device_seq is not a number")
    signature = fields["signature"]
    proof = (
        _unhexed(fields["hash"], 32, "hash").hex(),
        _unhexed(fields["previous"], 32, "chain value before it"),
        _unhexed(fields["chain"], 32, "chain value"),
        None if signature is None else _unhexed(signature, 64, "signature"),
    )
    if kind != ENTRY:
        return Line(kind, header, *proof)
    return Line(kind, header, *proof, _body(fields), *(fields[name] for name in _PLACE))


def _body(fields: dict[str, Any]) -> bytes | None:
    if "body" in fields:
        return None if fields["body"] is None else fields["body"].encode()
    try:
        return base64.b64decode(fields["body_base64"], validate=True)
    except ValueError:
        raise MalformedError("its body is not base64") from None


def manifest_in(kind: str, content: Any) -> Manifest:
    if kind != MANIFEST or not isinstance(content, dict) or content.get("format") != FORMAT:
        raise MalformedError(f"a bundle begins with a line that says {FORMAT!r}")
    fields = _shaped(content, _MANIFEST)
    devices = [_device(device) for device in fields["devices"]]
    names = [device.device_id for device in devices]
    if len(set(names)) < len(names) or fields["exported_by"] not in names:
        raise MalformedError("each device is listed once, and the one that exported is among them")
    ids = [entry_id for device in devices for entry_id in device.entries]
    if any(type(entry_id) is not str for entry_id in ids) or len(set(ids)) < len(ids):
        raise MalformedError("each entry is listed once")
    told = {name: fields[name] for name in Manifest._fields}
    return Manifest(**{**told, "devices": devices})


def _device(content: Any) -> Device:
    fields = _shaped(content, _DEVICE)
    key = _unhexed(fields["public_key"], 32, "public key")
    if fingerprint(key) != fields["fingerprint"]:
        raise MalformedError("a fingerprint is not that of the public key beside it")
    tip = None if fields["tip"] is None else _tip(fields["tip"])
    return Device(fields["device_id"], key, fields["entries"], fields["links"], tip)


def _tip(content: Any) -> Tip:
    fields = _shaped(content, _TIP)
    chain, signature = fields["chain"], fields["signature"]
    return Tip(fields["device_seq"], _unhexed(chain, 32, "tip"), _unhexed(signature, 64, "tip"))


def seal_in(content: Any) -> tuple[bytes, bytes]:
    """The digest of all lines before, and the signature."""
    fields = _shaped(content, _SEAL)
    return _unhexed(fields["sha256"], 32, "digest"), _unhexed(fields["signature"], 64, "signature")
