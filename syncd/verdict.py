"""What a status means to a person: whether the work is safe, and what wants attention.

Pure: it looks at the document of `syncd status` and at nothing else, so that the terminal, the
browser and scripts are told the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from syncd import disk
from syncd.keychain import END_TO_END

OK, ATTENTION, FAILED = "ok", "attention", "failed"
_READABLE = ", and what is written here can be read at the replica"


class Answer(NamedTuple):
    """The first line: is my work safe?"""

    kind: str
    headline: str
    words: str


class Need(NamedTuple):
    """Something that needs a person, and what to do about it."""

    what: str
    remedy: str


UNUSABLE = Answer(FAILED, "Failed", "this home cannot be used as it is.")


def judged(document: dict[str, Any]) -> dict[str, Any]:
    """A status with its verdict, which stands first."""
    push = document["push"]
    safe = (
        document["cloud"]["state"] != "unconfigured"
        and not push["pending"]
        and not push["refused"]
        and not document["begun_anew"]
    )
    found = [need._asdict() for need in needs(document)]
    return {
        "verdict": ATTENTION if found else OK,
        "answer": _answer(document, safe)._asdict(),
        "safe_to_close": safe,
        **document,
        "attention": found,
    }


def _answer(document: dict[str, Any], safe: bool) -> Answer:
    push = document["push"]
    pending, refused = push["pending"], push["refused"]
    if safe:
        return Answer("safe", "Safe to close the lid", "the replica has everything.")
    if document["begun_anew"]:
        return Answer("begun_anew", "Begun anew", "what was here before is not in this database.")
    if document["cloud"]["state"] == "unconfigured":
        words = "what is written stays on this disk (`syncd login` connects a replica)."
        return Answer("local", "Local only", words)
    if not pending:
        return Answer("refused", "Not all", f"the replica refused {refused:,} of your entries.")
    where = f"{pending:,} {'entry is' if pending == 1 else 'entries are'} on this disk only"
    if push["reads_only"]:
        words = f"{where}, for this login only reads (an auditor's)."
        return Answer("kept", "Kept here", words)
    return Answer("waiting", "Not yet", f"{where}.")


# --- what needs a person --------------------------------------------------------------------------


def needs(document: dict[str, Any]) -> Iterator[Need]:
    """What is worst comes first."""
    yield from _of_the_database(document)
    yield from _of_the_disk(document["disk"])
    yield from _of_single_entries(document)
    yield from _of_the_daemon(document)
    cloud = document["cloud"]
    if cloud["needs_person"]:  # being offline passes by itself; a login that is refused does not
        yield Need(cloud["last_error"], cloud["remedy"])


def _of_the_database(document: dict[str, Any]) -> Iterator[Need]:
    if lost := document["begun_anew"]:
        yield Need(f"the database of this home was gone on {lost}", _ways_back(document))
    if closed := document["keys_closed"]:
        yield Need(closed["what"], closed["remedy"])
    if document["local"]["problems"]:
        yield Need("entries are damaged", "`syncd audit verify` names them.")


def _ways_back(document: dict[str, Any]) -> str:
    newest, replicated = document["newest_copy"], document["cloud"]["state"] != "unconfigured"
    ways = [f"`syncd backup restore {newest}` brings back its newest copy"] if newest else []
    ways += ["`syncd sync` fetches what the replica has"] if replicated else []
    return "; ".join([*ways, "`syncd init` goes on without it."])


def _of_the_disk(found: dict[str, Any]) -> Iterator[Need]:
    if found["free_bytes"] < disk.NOTHING:
        yield Need(
            "the disk is full: nothing can be written or fetched",
            "Make room; what was acknowledged is safe.",
        )
    elif found["problem"]:
        yield Need(
            f"{found['problem']}: nothing is fetched or backed up, what you write is kept",
            "Make room, or change disk.low_mb or disk.quota_mb; `syncd stats` shows sizes.",
        )


def _of_single_entries(document: dict[str, Any]) -> Iterator[Need]:
    readable = "" if document["encryption"] == END_TO_END else _READABLE
    for name in document["keys_missing"]:
        yield Need(
            f"entries are sealed with key {name}, which is not here{readable}",
            "`syncd keys export` on a machine that has it, `syncd keys import` here.",
        )
    for name in document["erased_and_back"]:
        yield Need(
            f"checkpoint {name} was erased, and has content that another machine wrote without "
            "knowing",
            f"`syncd erase {name}` again takes that away too.",
        )
    if document["quarantined"]:
        yield Need(f"{document['quarantined']:,} in quarantine", "`syncd quarantine list`")


def _of_the_daemon(document: dict[str, Any]) -> Iterator[Need]:
    cloud, push, daemon = document["cloud"], document["push"], document["daemon"]
    waits = cloud["state"] != "unconfigured" and push["pending"] and not push["reads_only"]
    if waits and not daemon["running"] and not cloud["needs_person"]:
        yield Need(
            "the daemon does not run, and entries wait", "`syncd start`, or `syncd sync` once."
        )
    on_a_full_disk = document["disk"]["free_bytes"] < disk.NOTHING  # it answers in a file
    if daemon["running"] and not daemon["answers"] and not on_a_full_disk:
        yield Need("the daemon does not answer", f"`syncd restart`; its log is {daemon['log']}")
