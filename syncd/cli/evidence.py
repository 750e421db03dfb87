"""How a bundle looks to people and to scripts: what was exported, what checking it has found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from syncd.cli import render

if TYPE_CHECKING:
    from syncd.bundle import Exported, Verdict


def receipt(done: Exported) -> dict[str, Any]:
    return {
        "file": str(done.path),
        "task_id": done.manifest.task_id,
        "exported_at": done.manifest.exported_at,
        "entries": done.entries,
        "links": done.links,
        "purged": done.purged,
        "devices": [device.device_id for device in done.manifest.devices],
        "signer": done.signer,
        "bytes": done.bytes,
        "sha256": done.sha256,
        "replica": done.manifest.replica,
    }


def receipt_text(done: Exported) -> str:
    entries = render.count(done.entries, "entry", "entries")
    place = "Written" if str(done.path) == "-" else done.path
    lines = [f"{place}: {entries} of task {render.clean(done.manifest.task_id)}."]
    if done.links:
        links = render.count(done.links, "entry", "entries")
        lines.append(
            f"To connect them with a signature it also has the headers of {links} of other tasks."
        )
    lines += [f"Sealed with the key {done.signer}.", render.wrapped(_ADVICE)]
    return "\n".join(lines)


_ADVICE = (
    "Tell the reader this fingerprint by another way than the file; then `syncd audit verify FILE "
    "--key FINGERPRINT` shows that nobody has changed it."
)


def document(verdict: Verdict) -> dict[str, Any]:
    manifest = verdict.manifest
    told = manifest._asdict() if manifest else {}
    return {
        "ok": verdict.ok,
        "signer": verdict.signer,
        "entries": verdict.entries,
        "signatures": verdict.signatures,
        "purged": verdict.purged,
        "sealed": verdict.sealed,
        "problems": [problem._asdict() for problem in verdict.problems],
        **{name: told.get(name) for name in ("task_id", "exported_at", "exported_by", "replica")},
        "devices": [device._asdict() for device in verdict.devices],
        "finalized": [closed._asdict() for closed in verdict.finalized],
    }


def text(verdict: Verdict) -> str:
    if not verdict.ok:
        return _problems(verdict)
    return "\n".join([*_summary(verdict), *_signers(verdict), *_finalized(verdict)])


def _problems(verdict: Verdict) -> str:
    found = render.count(len(verdict.problems), "problem", "problems")
    lines = [click.style(f"Not intact, {found}:", fg="red", bold=True)]
    for entry_id, device_id, problem in verdict.problems:
        name = f"entry {entry_id}" if entry_id else f"device {device_id}" if device_id else "file"
        lines.append(render.wrapped(f"  {render.clean(name)}: {render.clean(problem)}"))
    return "\n".join(lines)


def _summary(verdict: Verdict) -> list[str]:
    manifest = verdict.manifest
    if manifest is None:
        return []
    entries = render.count(verdict.entries, "entry", "entries")
    devices = render.count(len(verdict.devices), "device", "devices")
    who = f"exported {manifest.exported_at} by device {manifest.exported_by}"
    told = f"{entries} of task {manifest.task_id} from {devices}, {who}"
    known = verdict.signer == "established"
    lines = [render.labelled("Intact: " if known else "Intact, signer not established: ",
                             render.clean(told), "green" if known else "yellow")]  # fmt: skip
    if verdict.purged:
        lines.append(f"Bodies that were purged, by entries that say so: {verdict.purged:,}")
    if verdict.sealed:
        lines.append(
            f"Bodies that are the exporter's word: {verdict.sealed:,}. They were encrypted end to "
            "end, and their hashes can only be checked with that key."
        )
    return lines


def _signers(verdict: Verdict) -> list[str]:
    """Whose signatures these are, and on whose word."""
    words = {"given": "a key that you gave", "vouched": "on the exporter's word",
             "unknown": "not established"}  # fmt: skip
    lines = [
        f"  {render.clean(d.device_id)}: {render.count(d.entries, 'entry', 'entries')}, key "
        f"{d.fingerprint} ({words[d.key]})"
        for d in verdict.devices
    ]
    if verdict.signer != "established":
        lines.append(
            "Ask the exporter for the fingerprint by another way than this file, and add --key."
        )
    return [render.wrapped(line, indent="    ") for line in lines]


def _finalized(verdict: Verdict) -> list[str]:
    lines = []
    for closed in verdict.finalized:
        who = f"{closed.name}: {closed.meaning}" if closed.name else f"closed by {closed.actor}"
        told = f"Signed {closed.at}: {who} (checkpoint {closed.checkpoint_id})"
        lines.append(render.wrapped(render.clean(told), indent="    "))
    return lines
