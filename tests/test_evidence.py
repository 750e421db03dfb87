"""Evidence: anybody can check what was exported; what was done to it is found and named."""

from __future__ import annotations

import copy
import hashlib
import json
import os
import re
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import machines
import orjson
import pytest
from counts import full
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from devices import Device, Team, cloud, crew, team
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from machines import Machine
from postgres import Cluster
from replicas import cloud_on

from syncd import CheckpointService, backup, bundle, retention, sealing, tasks
from syncd.bundle import Verdict
from syncd.bundle.check import verify
from syncd.bundle.export import Plan, Spot
from syncd.bundle.form import to_be_sealed
from syncd.entry import header_bytes
from syncd.errors import (
    CheckpointCorruptionError,
    CheckpointExistsError,
    KeyMissingError,
    TaskNotFoundError,
    UsageError,
)
from syncd.seal import SigningKey, chain_value, digest, fingerprint

__all__ = ["cloud", "crew"]

machine_team = machines.team
runner = machines.runner
ROOT = Path(__file__).parent.parent
EVIDENCE = (ROOT / "docs" / "evidence.md").read_text(encoding="utf-8")
(CHECKER,) = re.findall(r"```python\n(.*?)```", EVIDENCE, re.S)


def wrote(device: Device | CheckpointService, task: str, text: str = "work") -> str:
    service = device.service if isinstance(device, Device) else device
    made = service.create_checkpoint(task, "agent", {"current_focus": text})
    return made.metadata.checkpoint_id


def exported(device: Device | CheckpointService, path: Path, task: str = "task") -> bundle.Exported:
    return bundle.export(device.node.store, device.node.key, task, path, force=True)


# --- a bundle of two devices ----------------------------------------------------------------------


class Case(NamedTuple):
    """A bundle, whose it is, and the ids of the task's entries: the exporter's and the other's."""

    lines: list[bytes]
    key: SigningKey
    ours: list[str]
    theirs: list[str]

    @property
    def fingerprint(self) -> str:
        return fingerprint(self.key.public())

    def found(self, lines: list[bytes] | None = None) -> Verdict:
        return verify(self.lines if lines is None else lines, [self.fingerprint])

    def named(self, lines: list[bytes]) -> dict[str, str]:
        """What was found, by entry."""
        found: dict[str, str] = {}
        for entry_id, _, problem in self.found(lines).problems:
            found[entry_id] = f"{found.get(entry_id, '')} {problem}".strip()
        return found


@pytest.fixture(scope="module")
def case(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    """The other device's entries lie among those of another task, and its batch has one
    signature: the last entry's."""
    place = tmp_path_factory.mktemp("case")
    with cloud_on(cluster) as opened, team(opened) as crew:
        us, them = crew.device(), crew.device()
        theirs = [wrote(them, "task")]
        wrote(them, "other")
        wrote(them, "other")
        theirs += [wrote(them, "task"), wrote(them, "task")]
        wrote(them, "other")
        them.sync()
        us.sync()
        ours = [wrote(us, "task")]
        wrote(us, "other")
        ours += [wrote(us, "task"), wrote(us, "task")]
        done = us.service.finalize_checkpoint(ours[0], sign_as="Ann Example", meaning="reviewed")
        ours.append(done.revision or "")
        wrote(us, "other")
        path = exported(us, place / "bundle").path
        yield Case(path.read_bytes().splitlines(keepends=True), us.node.key, ours, theirs)


def opened(lines: list[bytes]) -> list[dict[str, Any]]:
    return [orjson.loads(line) for line in lines]


def written(documents: list[dict[str, Any]]) -> list[bytes]:
    option = orjson.OPT_SORT_KEYS | orjson.OPT_APPEND_NEWLINE
    return [orjson.dumps(document, option=option) for document in documents]


def sealed(documents: list[dict[str, Any]], key: SigningKey) -> list[bytes]:
    """Sealed again, as only the owner of the key can do it."""
    lines = written(documents[:-1])
    content = hashlib.sha256(b"".join(lines)).digest()
    seal = {"sha256": content.hex(), "signature": key.sign(to_be_sealed(content)).hex()}
    return [*lines, *written([{"seal": seal}])]


def at(documents: list[dict[str, Any]], entry_id: str) -> int:
    return next(
        number for number, document in enumerate(documents)
        if document.get("entry", {}).get("header", [""])[0] == entry_id
    )  # fmt: skip


def chained(content: dict[str, Any]) -> None:
    """Make the chain value fit the header again."""
    header, previous = header_bytes(content["header"]), bytes.fromhex(content["previous"])
    content["chain"] = chain_value(previous, header, content["hash"]).hex()


def fresh_key() -> SigningKey:
    return SigningKey(Ed25519PrivateKey.generate())


def test_a_bundle_of_two_devices_is_intact_and_its_signer_established(case: Case) -> None:
    verdict = case.found()
    assert verdict.problems == []
    assert verdict.signer == "established"
    assert verdict.entries == len(case.ours) + len(case.theirs) == 7
    told = {device.fingerprint: (device.entries, device.links, device.key)
            for device in verdict.devices}  # fmt: skip
    assert told.pop(case.fingerprint) == (4, 0, "given")
    assert list(told.values()) == [(3, 3, "vouched")]
    both = verify(case.lines, [case.fingerprint, *told])
    assert [device.key for device in both.devices] == ["given", "given"]
    (closed,) = verdict.finalized
    assert (closed.entry_id, closed.name) == (case.ours[-1], "Ann Example")
    assert (closed.meaning, closed.at[:2]) == ("reviewed", "20")


def test_without_a_key_the_signer_is_unknown(case: Case) -> None:
    verdict = verify(case.lines)
    assert (verdict.ok, verdict.signer) == (True, "unknown")
    assert {device.key for device in verdict.devices} == {"unknown"}


def test_the_key_of_another_device_does_not_establish_the_signer(case: Case) -> None:
    (other,) = {d.fingerprint for d in case.found().devices} - {case.fingerprint}
    verdict = verify(case.lines, [other])
    assert (verdict.ok, verdict.signer) == (False, "unknown")
    assert "none of those given" in verdict.problems[0].problem


# --- tampering: by whoever gets hold of the file --------------------------------------------------

# Does something to the lines; the entry that must be named for it, and a word of what is said.
Tampering = Callable[[list[dict[str, Any]], Case], tuple[str, str]]


def change_header(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    documents[at(documents, case.theirs[0])]["entry"]["header"][8] = "mallory"
    return case.theirs[0], "header does not match"


def change_header_and_chain(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    content = documents[at(documents, case.theirs[1])]["entry"]
    content["header"][8] = "mallory"
    chained(content)
    return case.theirs[2], "does not continue the chain"


def change_body(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    content = documents[at(documents, case.theirs[1])]["entry"]
    content["body"] = content["body"].replace('"work"', '"rest"')
    return case.theirs[1], "body does not match"


def change_body_and_hash(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    content = documents[at(documents, case.theirs[1])]["entry"]
    content["body"] = content["body"].replace('"work"', '"rest"')
    content["hash"] = digest(content["body"].encode())
    return case.theirs[1], "header does not match"


def leave_out_body(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    documents[at(documents, case.theirs[1])]["entry"]["body"] = None
    return case.theirs[1], "body is missing"


def claim_a_purge(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    documents[at(documents, case.theirs[1])]["entry"] |= {"body": None, "purged": case.ours[1]}
    return case.theirs[1], "no purge in the file names it"


def remove(entry: int, *, ours: bool = False) -> Tampering:
    def removing(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
        entry_id = (case.ours if ours else case.theirs)[entry]
        del documents[at(documents, entry_id)]
        return entry_id, "is missing"

    removing.__name__ = f"remove {'ours' if ours else 'theirs'} {entry}"
    return removing


def swap(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    first, second = at(documents, case.theirs[1]), at(documents, case.theirs[2])
    documents[first], documents[second] = documents[second], documents[first]
    return case.theirs[1], "out of order"


def swap_devices(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    """The last entry of the first device among those of the other."""
    content = documents.pop(at(documents, case.ours[-1]))
    documents.insert(at(documents, case.theirs[1]), content)
    return case.ours[-1], "out of order"


def repeat(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    place = at(documents, case.theirs[1])
    documents.insert(place, copy.deepcopy(documents[place]))
    return case.theirs[1], "a second time"


def insert(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    """An entry that continues the chain, between two that are there."""
    place = at(documents, case.theirs[1])
    made = copy.deepcopy(documents[place])
    content = made["entry"]
    content["header"][0] = "00000000-0000-7000-8000-000000000000"
    content["previous"] = documents[place]["entry"]["chain"]
    content["header"][2] = str(int(content["header"][2]) + 1)
    content["signature"] = None
    chained(content)
    documents.insert(place + 1, made)
    return str(content["header"][0]), "not among those"


def append(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    """An entry after the last signature of its device."""
    place = max(at(documents, name) for name in case.ours)
    made = copy.deepcopy(documents[place])
    content = made["entry"]
    content["header"][0] = "00000000-0000-7000-8000-000000000000"
    content["header"][2] = str(int(content["header"][2]) + 5)
    content["previous"] = "17" * 32
    chained(content)
    documents.insert(place + 1, made)
    return str(content["header"][0]), "signature is not valid"


def sign_with_another_key(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    """The other device's one signature is on the link at the end."""
    last = [d["link"] for d in documents if "link" in d][-1]
    last["signature"] = fresh_key().sign(bytes.fromhex(last["chain"])).hex()
    return case.theirs[0], "no signature of its device covers it"


def leave_out_signature(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    [d["link"] for d in documents if "link" in d][-1]["signature"] = None
    return case.theirs[0], "no signature of its device covers it"


def unsign_finalized(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    documents[at(documents, case.ours[-1])]["entry"]["signature"] = None
    return case.ours[-1], "signature of a finalized"


def swap_public_key(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    other = their_device(documents, case)
    key = fresh_key().public()
    other |= {"public_key": key.hex(), "fingerprint": fingerprint(key)}
    return case.theirs[0], "no signature of its device covers it"


def their_device(documents: list[dict[str, Any]], case: Case) -> dict[str, Any]:
    devices: list[dict[str, Any]] = documents[0]["bundle"]["devices"]
    return next(device for device in devices if device["fingerprint"] != case.fingerprint)


def hide_behind_a_link(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    """An entry of the task whose content should not be seen."""
    place = at(documents, case.theirs[1])
    names = ("header", "hash", "previous", "chain", "signature")
    content = documents[place]["entry"]
    documents[place] = {"link": {name: content[name] for name in names}}
    device = their_device(documents, case)
    device["entries"].remove(case.theirs[1])
    device["links"] += 1
    return case.theirs[1], "stands here as one of another"


def remove_link(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    del documents[at(documents, case.theirs[0]) + 1]
    their_device(documents, case)["links"] -= 1
    return case.theirs[0], "no signature of its device covers it"


def remove_and_say_so_first(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    remove(0)(documents, case)
    their_device(documents, case)["entries"].remove(case.theirs[0])
    return case.theirs[1], "task_seq 2 stands where 1 belongs"


def remove_and_say_so_middle(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    remove(1)(documents, case)
    their_device(documents, case)["entries"].remove(case.theirs[1])
    return case.theirs[2], "task_seq 3 stands where 2 belongs"


def keep_a_purged_body(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    documents[at(documents, case.theirs[1])]["entry"]["purged"] = case.ours[1]
    return case.theirs[1], "a body stands where one was purged"


def number_backwards(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    content = documents[at(documents, case.theirs[1])]["entry"]
    content["header"][2] = "1"
    chained(content)
    return case.theirs[1], "number 1 of its device stands after number"


def pass_off_another_task(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    """A link as an entry of the task."""
    place = at(documents, case.theirs[0]) + 1
    content = documents[place].pop("link")
    more = {"body": "{}", "purged": None, "refused": None, "cloud_seq": None}
    documents[place]["entry"] = {**content, **more}
    device = their_device(documents, case)
    device["entries"].insert(1, content["header"][0])
    device["links"] -= 1
    return content["header"][0], "it is not an entry of the task"


def miscount_links(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    their_device(documents, case)["links"] += 1
    return "", "3 links are here, 4 were exported"


def name_another_fingerprint(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    their_device(documents, case)["fingerprint"] = "00" * 32
    return "", "not that of the public key"


def name_no_exporter(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    documents[0]["bundle"]["exported_by"] = "nobody"
    return "", "each device is listed once"


def list_a_device_twice(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    documents[0]["bundle"]["devices"].append(their_device(documents, case))
    return "", "each device is listed once"


def list_an_entry_twice(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
    their_device(documents, case)["entries"].append(case.theirs[0])
    return "", "each entry is listed once"


def number_in_words(number: str) -> Tampering:
    def changing(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
        documents[at(documents, case.theirs[0])]["entry"]["header"][2] = number
        return "", "device_seq is not a number"

    changing.__name__ = f"number {number!a}"
    return changing


def of_another_size(name: str, value: str) -> Tampering:
    """What is chained must not be read with its parts divided otherwise."""

    def changing(documents: list[dict[str, Any]], case: Case) -> tuple[str, str]:
        documents[at(documents, case.theirs[0])]["entry"][name] = value
        return "", "is not one of"

    changing.__name__ = f"{name} of {len(value)}"
    return changing


TAMPERING: tuple[Tampering, ...] = (
    change_header, change_header_and_chain, change_body, change_body_and_hash, leave_out_body,
    claim_a_purge, keep_a_purged_body, remove(0), remove(1), remove(2), remove(0, ours=True),
    remove(-1, ours=True), swap, swap_devices, repeat, number_backwards, insert, append,
    sign_with_another_key, leave_out_signature, unsign_finalized, swap_public_key,
    hide_behind_a_link, remove_link, remove_and_say_so_first, remove_and_say_so_middle,
    pass_off_another_task, miscount_links, name_another_fingerprint, name_no_exporter,
    list_a_device_twice, list_an_entry_twice, of_another_size("hash", "0" * 62),
    of_another_size("previous", "00" * 31), of_another_size("chain", "AB" * 32),
    of_another_size("signature", "00" * 65), *map(number_in_words, ("one", "²", "-1", "9" * 30)),
)  # fmt: skip


@pytest.mark.parametrize("tampering", TAMPERING, ids=lambda t: t.__name__)
def test_what_was_done_to_an_entry_is_found_and_named(case: Case, tampering: Tampering) -> None:
    documents = opened(case.lines)
    entry_id, word = tampering(documents, case)
    found = case.named(written(documents))
    assert word in found[entry_id]
    assert "" in found, "the seal is broken too"


@pytest.mark.parametrize("tampering", TAMPERING, ids=lambda t: t.__name__)
def test_the_exporter_cannot_do_it_either(case: Case, tampering: Tampering) -> None:
    """His own seal is in order then."""
    documents = opened(case.lines)
    entry_id, word = tampering(documents, case)
    assert word in case.named(sealed(documents, case.key))[entry_id]


@pytest.mark.parametrize(
    "change",
    [
        {"exported_at": "2020-01-01T00:00:00.000+00:00"},
        {"replica": None},
        {"task_id": "another"},
    ],
    ids=str,
)
def test_a_changed_manifest_is_found(case: Case, change: dict[str, Any]) -> None:
    documents = opened(case.lines)
    documents[0]["bundle"] |= change
    verdict = case.found(written(documents))
    assert (verdict.ok, verdict.signer) == (False, "unknown")


def test_a_changed_counter_of_the_replica_is_found(case: Case) -> None:
    documents = opened(case.lines)
    assert documents[0]["bundle"]["replica"]["cloud_seq"] == 6
    documents[0]["bundle"]["replica"]["cloud_seq"] = 3
    assert [problem for problem in case.named(written(documents)).values() if "changed" in problem]


def test_a_tip_that_was_changed_is_found(case: Case) -> None:
    documents = opened(case.lines)
    tip = their_device(documents, case)["tip"]
    for change in ({"device_seq": 1}, {"chain": "00" * 32}, {"signature": "00" * 64}):
        changed = copy.deepcopy(documents)
        their_device(changed, case)["tip"] = {**tip, **change}
        problems = case.found(sealed(changed, case.key)).problems
        assert ["tip" in problem.problem for problem in problems] == [True], change


def test_a_file_that_is_signed_anew_by_somebody_else_is_not_the_exporters(case: Case) -> None:
    """All is in order in itself: only the fingerprint tells."""
    documents, mallory = opened(case.lines), fresh_key()
    manifest = documents[0]["bundle"]
    for device in manifest["devices"]:
        key = mallory.public()
        device |= {"public_key": key.hex(), "fingerprint": fingerprint(key)}
        device["tip"]["signature"] = mallory.sign(bytes.fromhex(device["tip"]["chain"])).hex()
    for document in documents[1:-1]:
        [content] = document.values()
        if content["signature"]:
            content["signature"] = mallory.sign(bytes.fromhex(content["chain"])).hex()
    forged = sealed(documents, mallory)
    assert (verify(forged).ok, verify(forged).signer) == (True, "unknown")
    verdict = case.found(forged)
    assert (verdict.ok, verdict.signer) == (False, "unknown")
    assert [p.problem for p in verdict.problems if fingerprint(mallory.public()) in p.problem]


def test_a_file_that_was_cut_off_anywhere_is_found_and_tells_what_is_missing(case: Case) -> None:
    for count in range(1, len(case.lines)):
        found = case.named(case.lines[:count])
        documents = opened(case.lines[:count])
        for entry_id in (*case.ours, *case.theirs):
            there = any(d.get("entry", {}).get("header", [""])[0] == entry_id for d in documents)
            assert there or "missing" in found[entry_id]
        assert "the end of the bundle is missing" in found[""]
    whole = b"".join(case.lines)
    for size in (*range(0, len(whole), 97), len(whole) - 1):
        assert not case.found(whole[:size].splitlines(keepends=True)).ok, size


def test_lines_after_the_end_are_found(case: Case) -> None:
    for more in (case.lines[-1], case.lines[1], b"\n", b"x"):
        assert not case.found([*case.lines, more]).ok


# --- whatever the bytes ---------------------------------------------------------------------------


def test_no_flipped_bit_goes_unnoticed(case: Case) -> None:
    """Each byte once, one of its bits in turn."""
    whole = b"".join(case.lines)
    for place in range(0, len(whole), 1 if os.environ.get("SYNCD_PROOF") else 53):
        changed = bytearray(whole)
        changed[place] ^= 1 << place % 8
        lines = bytes(changed).splitlines(keepends=True)
        assert not case.found(lines).ok, place


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner,
                                                                 max_size=4),
)  # fmt: skip


@given(st.lists(st.binary(max_size=60), max_size=4))
def test_any_bytes_are_answered_with_a_verdict(lines: list[bytes]) -> None:
    assert not verify(b"\n".join(lines).splitlines(keepends=True)).ok


@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_value_anywhere_is_answered_with_a_verdict(case: Case, data: st.DataObject) -> None:
    """Sealed again each time, so that the values themselves are looked at."""
    documents = opened(case.lines)
    spots = list(places(documents[data.draw(st.integers(0, len(documents) - 1))]))
    container, name = data.draw(st.sampled_from(spots))
    before, container[name] = container[name], data.draw(JSON)
    try:
        lines = sealed(documents, case.key) if data.draw(st.booleans()) else written(documents)
        verify(lines, [case.fingerprint])
    finally:
        container[name] = before


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every place in a document that has a value."""
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for name, inner in items:
        yield value, name
        if isinstance(inner, dict | list):
            yield from places(inner)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (b"", "empty"),
        (b"\n", "line 1"),
        (b"{}\n", "line 1"),
        (b"\xff\xfe\n", "not JSON"),
        (b"[" * 100_000 + b"\n", "line 1"),
        (b'{"bundle":' + b"[" * 300 + b"]" * 300 + b"}\n", "line 1"),
        (b'{"bundle":{"format":"syncd bundle 2"}}\n', "begins with"),
        (b'{"bundle":{"format":"syncd bundle 1"}}\n', "other fields"),
        (b"x" * 1_000_000, "no end"),
    ],
    ids=["nothing", "blank", "object", "bytes", "deep", "deep bundle", "newer", "bare", "long"],
)
def test_what_is_no_bundle_is_said_to_be_none(tmp_path: Path, content: bytes, word: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    verdict = bundle.verify_file(file)
    assert (verdict.ok, verdict.signer, verdict.entries) == (False, "unknown", 0)
    assert word in verdict.problems[0].problem


def test_a_file_full_of_problems_is_not_read_to_its_end(case: Case) -> None:
    lines = iter([case.lines[0], *[b"x\n"] * 5_000])
    assert 1_000 <= len(verify(lines).problems) < 1_100
    assert len(list(lines)) > 3_000


def test_a_line_in_another_form_is_found(case: Case) -> None:
    """The same content, blanks in it: there is one form only."""
    loose = json.dumps(orjson.loads(case.lines[1])).encode() + b"\n"
    verdict = case.found([case.lines[0], loose, *case.lines[2:]])
    assert "form" in verdict.problems[0].problem


# --- the checker in the documentation -------------------------------------------------------------


def checked(
    place: Path, lines: list[bytes], *fingerprints: str
) -> subprocess.CompletedProcess[str]:
    """Run as a stranger would: without this project at hand."""
    file, script = place / "file", place / "check.py"
    file.write_bytes(b"".join(lines))
    script.write_text(CHECKER)
    command = [sys.executable, "-I", str(script), str(file), *fingerprints]
    return subprocess.run(command, capture_output=True, text=True, cwd=place, timeout=60)


def test_the_checker_in_the_docs_needs_nothing_of_syncd() -> None:
    imports = re.findall(r"^(?:import|from) (.+?)(?: import .*)?$", CHECKER, re.M)
    assert {name.split(".")[0] for line in imports for name in line.split(", ")} == {
        "base64", "hashlib", "json", "sys", "cryptography"}  # fmt: skip


def test_the_checker_in_the_docs_accepts_an_intact_bundle(case: Case, tmp_path: Path) -> None:
    done = checked(tmp_path, case.lines, case.fingerprint)
    assert (done.returncode, done.stdout) == (0, "intact: 7 entries, signer established\n"), done
    assert "not established" in checked(tmp_path, case.lines).stdout


@pytest.mark.parametrize("tampering", TAMPERING, ids=lambda t: t.__name__)
def test_the_checker_in_the_docs_finds_the_same(
    case: Case, tampering: Tampering, tmp_path: Path
) -> None:
    documents = opened(case.lines)
    tampering(documents, case)
    plainly, well = written(documents), sealed(documents, case.key)
    for lines in full([well], [plainly, well]):
        done = checked(tmp_path, lines, case.fingerprint)
        assert done.returncode == 1, tampering
        assert done.stdout == ""


def test_the_checker_in_the_docs_wants_the_right_key_and_the_whole_file(
    case: Case, tmp_path: Path
) -> None:
    stranger = fingerprint(fresh_key().public())
    assert "sealed with the key" in checked(tmp_path, case.lines, stranger).stderr
    documents = opened(case.lines)
    documents[0]["bundle"]["exported_at"] = "2020"
    assert "changed" in checked(tmp_path, written(documents), case.fingerprint).stderr
    assert checked(tmp_path, case.lines[:-1], case.fingerprint).returncode == 1


# --- what is exported -----------------------------------------------------------------------------


def spots(text: str) -> list[Spot]:
    """`A` an entry of the task, `a` one of another; `!` after it says that it is signed."""
    found = re.findall(r"([Aa])(!?)", text)
    return [
        Spot(number, f"e{number}", "device", number, bool(mark), letter == "A")
        for number, (letter, mark) in enumerate(found, start=1)
    ]


@pytest.mark.parametrize(
    ("log", "own", "chosen", "signed"),
    [
        ("A a A a", True, [1, 3], {1, 3}),
        ("A A A a", True, [1, 2, 3], {3}),
        ("A! a A a", True, [1, 3], {3}),
        ("a a", True, [], set()),
        ("A! a A! a!", False, [1, 3], set()),
        ("A a a! a a!", False, [1, 2, 3], set()),
        ("a! A a A! a a!", False, [2, 3, 4], set()),
        ("A a a a", False, [1], set()),
    ],
)
def test_only_what_connects_the_entries_with_a_signature_is_taken(
    log: str, own: bool, chosen: list[int], signed: set[int]
) -> None:
    plan = Plan({"device"} if own else set())
    for spot in spots(log):
        plan.meet(spot)
    assert [spot.seq for spot in plan.spots.get("device", [])] == chosen
    assert plan.to_sign("device") == signed


def test_nothing_of_another_task_of_this_device_is_in_the_file(
    service: CheckpointService, tmp_path: Path
) -> None:
    for number in range(3):
        wrote(service, "task", "ours")
        wrote(service, f"secret project {number}", "secret text")
    tasks.add(service.node, "task", title="a title")
    done = exported(service, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    assert (done.entries, done.links) == (4, 0)
    assert b"secret" not in content
    assert b"a title" in content


def test_of_another_task_of_another_device_only_headers_are_in_the_file(
    crew: Team, tmp_path: Path
) -> None:
    us, them = crew.device(), crew.device()
    wrote(them, "task")
    wrote(them, "between", "text of another task")
    them.sync()
    wrote(them, "later")
    crew.settle()
    done = exported(us, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    assert (done.entries, done.links) == (1, 1)
    assert b"between" in content
    assert b"text of another task" not in content
    assert b"later" not in content, "what is signed needs nothing after it"


def test_the_file_is_the_same_each_time_but_for_the_time(
    service: CheckpointService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(service, "task")
    monkeypatch.setattr("syncd.clock.wall_ms", lambda: 1_800_000_000_000)
    for name in ("one", "two"):
        exported(service, tmp_path / name)
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_exporting_changes_nothing(service: CheckpointService, tmp_path: Path) -> None:
    wrote(service, "task")
    dump = "\n".join(service.node.store.connection.iterdump())
    exported(service, tmp_path / "file")
    assert "\n".join(service.node.store.connection.iterdump()) == dump


def test_odd_texts_and_bodies_survive(service: CheckpointService, tmp_path: Path) -> None:
    task = 'quote " back \\ 😀 ﬀ / é'
    wrote(service, task, "tab \t \u0000 \u0001 \x7f \u2028 end")
    done = exported(service, tmp_path / "file", task)
    assert done.manifest.task_id == task
    assert (
        checked(tmp_path, (tmp_path / "file").read_bytes().splitlines(keepends=True)).returncode
        == 0
    )


def test_a_body_that_is_no_text_is_exported_too(crew: Team, tmp_path: Path) -> None:
    """Other programs write to the replica as well: sealed by a key, a body may be anything."""
    us = crew.device()
    entry_id = wrote(us, "task")
    store = us.node.store
    body = b"\xff\xfe no text"
    previous, header = bytes(32), store.entry(entry_id)
    assert header is not None
    chain = chain_value(previous, header.header(), digest(body))
    store.connection.execute("UPDATE log SET body = ?, hash = ?, chain = ?",
                             (body, digest(body), chain))  # fmt: skip
    exported(us, tmp_path / "file")
    lines = (tmp_path / "file").read_bytes().splitlines(keepends=True)
    assert b"body_base64" in lines[1]
    assert checked(tmp_path, lines).returncode == 0
    assert not verify([lines[0], lines[1].replace(b"//4g", b"//5g"), *lines[2:]]).ok


def test_a_damaged_entry_is_not_exported(service: CheckpointService, tmp_path: Path) -> None:
    entry_id = wrote(service, "task")
    run = service.node.store.connection.execute
    (row,) = run("SELECT * FROM log").fetchall()
    for change in (
        "UPDATE log SET body = CAST(replace(body, 'work', 'rest') AS BLOB)",
        "UPDATE log SET actor = 'mallory'",
        "UPDATE log SET device_seq = 'many'",
        "UPDATE log SET previous = 'text'",
        "UPDATE log SET signature = 'text'",
        "UPDATE log SET signature = x'00'",
    ):
        run(change)
        with pytest.raises(CheckpointCorruptionError, match=entry_id) as raised:
            exported(service, tmp_path / "file")
        assert "no file was written" in raised.value.message
        assert [path for path in tmp_path.iterdir() if path.is_file()] == [], change
        run("DELETE FROM log")
        run(f"INSERT INTO log VALUES ({', '.join('?' * len(row))})", row)
    assert exported(service, tmp_path / "file").entries == 1


def test_a_task_that_does_not_exist_cannot_be_exported(
    service: CheckpointService, tmp_path: Path
) -> None:
    with pytest.raises(TaskNotFoundError):
        exported(service, tmp_path / "file")
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


def test_a_file_is_not_overwritten_unless_it_is_meant(
    service: CheckpointService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrote(service, "task")
    node, file = service.node, tmp_path / "file"
    file.write_text("mine")
    with pytest.raises(CheckpointExistsError, match="exists already"):
        bundle.export(node.store, node.key, "any task: it is not even looked at", file)
    # Somebody makes it while the export is at work, and where files have no second name.
    monkeypatch.setattr("os.path.lexists", lambda _: False)
    with pytest.raises(CheckpointExistsError, match="exists already"):
        bundle.export(node.store, node.key, "task", file)
    monkeypatch.undo()
    assert file.read_text() == "mine"
    bundle.export(node.store, node.key, "task", file, force=True)
    assert bundle.verify_file(file).ok
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_where_a_file_can_have_only_one_name_it_is_written_all_the_same(
    service: CheckpointService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    wrote(service, "task")
    node, file = service.node, tmp_path / "file"
    monkeypatch.setattr("os.link", refused)
    bundle.export(node.store, node.key, "task", file)
    assert bundle.verify_file(file).ok
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["file"]


# --- purged, refused, encrypted -------------------------------------------------------------------


def test_purged_bodies_are_accounted_for(service: CheckpointService, tmp_path: Path) -> None:
    erased, kept = wrote(service, "task", "to be erased"), wrote(service, "task")
    retention.erase(service.node, erased, "a customer asked")
    done = exported(service, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    assert (done.entries, done.purged) == (3, 1)
    assert b"to be erased" not in content
    lines = content.splitlines(keepends=True)
    assert checked(tmp_path, lines).returncode == 0
    documents = opened(lines)
    # The purge says that it took another body away.
    purge = next(
        d["entry"] for d in documents if d.get("entry", {}).get("header", "    ")[3] == "purge"
    )
    purge["header"][11] = purge["header"][11].replace(erased, kept)
    chained(purge)
    named = {p.entry_id: p.problem for p in verify(written(documents)).problems}
    assert "no purge in the file names it" in named[erased]


def test_a_purge_that_is_only_known_as_evidence_accounts_for_a_body(
    service: CheckpointService, tmp_path: Path
) -> None:
    """The log was restored from a backup that is older than the purge."""
    node = service.node
    erased = wrote(service, "task", "to be erased")
    copy_ = backup.create(node.database, node.home / "backups", 10)
    wrote(service, "task")
    retention.erase(node, erased)
    backup.restore(node.database, node.home / "backups", copy_.name)
    node.close()
    with closing(CheckpointService(home=node.home)) as again:
        done = exported(again, tmp_path / "file")
    lines = (tmp_path / "file").read_bytes().splitlines(keepends=True)
    assert (done.entries, done.purged) == (1, 1)
    assert [line[:9] for line in lines[1:]] == [b'{"entry":', b'{"purge":', b'{"seal":{']
    assert checked(tmp_path, lines).returncode == 0
    assert "no purge" in verify([*lines[:2], lines[3]]).problems[0].problem
    documents = opened(lines)
    documents[2]["purge"]["signature"] = "00" * 64
    assert [p for p in verify(written(documents)).problems if "signature is not" in p.problem]


def test_a_body_that_is_gone_without_a_purge_is_not_exported(
    service: CheckpointService, tmp_path: Path
) -> None:
    entry_id, other = wrote(service, "task"), wrote(service, "task")
    run = service.node.store.connection.execute
    run("UPDATE log SET body = x'', purged = ? WHERE entry_id = ?", (other, entry_id))
    with pytest.raises(CheckpointCorruptionError, match="no purge in the file names it"):
        exported(service, tmp_path / "file")


def test_what_the_replica_refused_is_exported_as_it_is_known(crew: Team, tmp_path: Path) -> None:
    """Its writer has the body, others have the header."""
    us, them = crew.device(), crew.device()
    crew.sql("UPDATE syncd.organizations SET body_limit = 2500 WHERE organization_id = %s")
    wrote(them, "task", "x" * 4_000)
    wrote(them, "task")
    crew.settle()
    assert crew.sql("SELECT count(*) FROM syncd.log WHERE refused IS NOT NULL"
                    " AND organization_id = %s") == [(1,)]  # fmt: skip
    for device, text in ((us, False), (them, True)):
        done = exported(device, tmp_path / "file")
        content = (tmp_path / "file").read_bytes()
        assert done.entries == 2
        assert (b"xxxx" in content) == text
        assert checked(tmp_path, content.splitlines(keepends=True)).returncode == 0


def test_after_a_home_was_copied_both_of_its_ids_are_in_the_file(
    crew: Team, tmp_path: Path
) -> None:
    one = crew.device()
    wrote(one, "task")
    one.sync()
    two = crew.joined(one.clone(crew.home()))
    wrote(one, "task", "mine")
    wrote(two, "task", "copy's")
    crew.settle()
    for device in (one, two):
        done = exported(device, tmp_path / "file")
        assert done.entries == 3
        assert len(done.manifest.devices) == 2
        assert done.links == 0


def test_after_a_key_was_changed_both_keys_are_in_the_file(
    service: CheckpointService, tmp_path: Path
) -> None:
    """What the old key had not signed was signed with it when it was changed."""
    before = fingerprint(service.node.key.public())
    wrote(service, "task")
    wrote(service, "other")
    sealing.rotate_signing(service.node, "")
    wrote(service, "task")
    done = exported(service, tmp_path / "file")
    assert (done.entries, done.signer == before) == (2, False)
    verdict = bundle.verify_file(tmp_path / "file", [done.signer])
    assert {d.fingerprint: d.key for d in verdict.devices} == {
        before: "vouched", done.signer: "given"}  # fmt: skip
    assert not bundle.verify_file(tmp_path / "file", [before]).ok


@pytest.mark.parametrize("mode", ["at_rest", "end_to_end"])
def test_what_is_encrypted_is_exported_readable(
    service: CheckpointService, tmp_path: Path, mode: str
) -> None:
    sealing.encrypt(service.node, mode)
    wrote(service, "task", "plain words")
    exported(service, tmp_path / "file")
    content = (tmp_path / "file").read_bytes()
    assert b"plain words" in content
    verdict = bundle.verify_file(tmp_path / "file")
    assert (verdict.ok, verdict.sealed) == (True, int(mode == "end_to_end"))
    assert checked(tmp_path, content.splitlines(keepends=True)).returncode == 0


def test_what_cannot_be_read_here_is_not_exported(crew: Team, tmp_path: Path) -> None:
    us, them = crew.device(), crew.device()
    sealing.encrypt(them.node, "end_to_end")
    them.open()
    wrote(them, "task")
    crew.settle()
    with pytest.raises(KeyMissingError):
        exported(us, tmp_path / "file")
    assert exported(them, tmp_path / "file").entries == 1


# --- keys -----------------------------------------------------------------------------------------


def test_a_fingerprint_may_be_written_in_groups_and_cut_to_half(case: Case) -> None:
    name = case.fingerprint
    groups = ":".join(name[n : n + 2] for n in range(0, 64, 2)).upper()
    for text in (name, groups, name[:32], f" {name[:40]} "):
        assert verify(case.lines, [bundle.trusted(text)]).signer == "established"
    for text in ("", name[:31], name + "0", "x" * 64, name[:-1] + "ß"):
        with pytest.raises(UsageError):
            bundle.trusted(text)


# --- the command line -----------------------------------------------------------------------------


@pytest.fixture
def machine(runner: machines.Runner, tmp_path: Path) -> Machine:
    return Machine(runner, tmp_path / "machine")


def test_a_bundle_is_checked_where_there_is_no_home(machine: Machine, tmp_path: Path) -> None:
    checkpoint_id = machine.create("task")
    machine.ok("checkpoint", "finalize", checkpoint_id, "--sign-as", "Ann", "--meaning", "reviewed")
    file = str(tmp_path / "evidence")
    done = machine.json("audit", "export", "task", "--output", file)
    assert (done["entries"], done["links"], done["file"]) == (2, 0, file)
    assert done["sha256"] == hashlib.sha256(Path(file).read_bytes()).hexdigest()
    assert done["signer"] == machine.json("keys", "show")["signing_key"]
    stranger = Machine(machine._runner, tmp_path / "nowhere")
    found = stranger.json("audit", "verify", file, "--key", done["signer"])
    assert (found["ok"], found["signer"], found["entries"], found["problems"]) == (
        True, "established", 2, [])  # fmt: skip
    assert found["finalized"][0]["name"] == "Ann"
    assert stranger.json("audit", "verify", file)["signer"] == "unknown"
    text = stranger.ok("audit", "verify", file).out
    assert "Intact, signer not established: 2 entries" in text
    assert "Ann: reviewed" in text
    assert "Intact: 2 entries" in stranger.ok("audit", "verify", file, "--key", done["signer"]).out
    assert not stranger.home.exists()


def test_a_bad_bundle_ends_with_exit_code_5_and_names_what_is_wrong(
    machine: Machine, tmp_path: Path
) -> None:
    first, second = machine.create("task"), machine.create("task")
    file = tmp_path / "evidence"
    signer = machine.json("audit", "export", "task", "--output", str(file))["signer"]
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(b"".join([lines[0], *lines[2:]]))
    result = machine.run("audit", "verify", str(file), "--key", signer, "--json")
    assert result.code == 5
    found = result.json()
    assert (found["ok"], found["signer"]) == (False, "unknown")
    assert {first, second} <= {problem["entry_id"] for problem in found["problems"]}
    text = machine.run("audit", "verify", str(file))
    assert (text.code, first in text.out) == (5, True)
    file.write_bytes(b"\x00\xff")
    assert machine.run("audit", "verify", str(file)).code == 5
    other = fingerprint(fresh_key().public())
    file.write_bytes(b"".join(lines))
    assert machine.run("audit", "verify", str(file), "--key", other).code == 5


def test_text_from_a_file_cannot_speak_to_the_terminal(case: Case, machine: Machine) -> None:
    documents = opened(case.lines)
    documents[at(documents, case.ours[1])]["entry"]["header"][0] = "\x08gone"
    file = machine.home.parent / "evil"
    file.write_bytes(b"".join(written(documents)))
    shown = machine.run("audit", "verify", str(file)).out
    assert "gone" in shown
    assert "\x08" not in shown


def test_wrong_usage_of_export_and_verify_is_told(machine: Machine, tmp_path: Path) -> None:
    machine.create("task")
    file = str(tmp_path / "evidence")
    machine.ok("audit", "export", "task", "--output", file)
    assert "--force" in machine.fails(7, "audit", "export", "task", "--output", file)["remedy"]
    machine.ok("audit", "export", "task", "--output", file, "--force")
    machine.fails(4, "audit", "export", "nothing", "--output", file, "--force")
    machine.fails(2, "audit", "export", "task")
    machine.fails(1, "audit", "export", "task", "--output", str(tmp_path / "no" / "folder"))
    machine.fails(2, "audit", "verify", file, "--key", "abc")
    machine.fails(2, "audit", "verify", "--key", "a" * 64)
    machine.fails(2, "audit", "verify", file, "--cloud")
    machine.fails(4, "audit", "verify", str(tmp_path / "missing"))
    machine.fails(2, "audit", "verify", str(tmp_path))
    assert bundle.verify_file(Path(file)).ok, "what went wrong has left it alone"
