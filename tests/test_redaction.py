"""Secrets are taken out before anything is written, and told by place and rule, never by text."""

from __future__ import annotations

import copy
import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from counts import full
from devices import Team, cloud, crew
from hypothesis import given
from hypothesis import strategies as st
from machines import Result, the_runner
from samples import Maker, harmless, secrets

from syncd import CheckpointService, ExecutionState, InvalidInputError, retention, tasks
from syncd.audit import verify
from syncd.errors import ConfigError
from syncd.node import Node
from syncd.redaction import PATTERN_SECONDS, Cleaned, Found, Redactor, Shape
from syncd.rules import RULES

__all__ = ["cloud", "crew"]

# Sealed bodies would hide a canary from the search for it.
pytestmark = pytest.mark.plain

MAKE = Maker(11)
CANARY = MAKE.some(36)
TOKEN = "ghp_" + CANARY
MARK = "[redacted: github-token]"
WORD = "hunter" + "2"  # what a person might choose
PEM = f"""a
-----BEGIN RSA {"PRIVATE"} KEY-----
Proc-Type: 4,ENCRYPTED

{CANARY}
-----END RSA {"PRIVATE"} KEY-----
b"""
OFF = {"SYNCD_REDACTION_ENABLED": "false"}


def text(text: str, **settings: Any) -> str:
    return Redactor(**settings).quoted(text)


def cleaned(document: Any, shape: Shape | None = None, **settings: Any) -> Cleaned:
    return Redactor(**settings).cleaned(document, shape or Shape())


def holding(folder: Path, canary: str = CANARY) -> set[str]:
    """The files below a folder that have these bytes anywhere in them."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {file.name for file in files if canary.encode() in file.read_bytes()}


# --- how well it tells ----------------------------------------------------------------------------


def test_secrets_are_found_and_harmless_texts_left_alone() -> None:
    missed, alarms, found, left = [], [], 0, 0
    for seed in range(1, 6):
        wanted, unwanted = secrets(seed), harmless(seed)
        assert len(wanted) >= 80
        assert len(unwanted) >= 120
        missed += [s.text for s in wanted if s.secret in text(s.text)]
        alarms += [t for t in unwanted if text(t) != t]
        found, left = found + len(wanted), left + len(unwanted)
    assert len(missed) / found <= 0.05, missed
    assert len(alarms) / left <= 0.02, alarms


def test_every_rule_has_found_something_in_the_samples() -> None:
    """A rule that finds nothing may as well be gone, or be wrong."""
    found = {
        rule.rule
        for seed in range(1, 4)
        for secret in secrets(seed)
        for rule in cleaned({"t": secret.text}).taken
    }
    assert {rule.name for rule in RULES} - found == set()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (f"use {TOKEN}, then go on", f"use {MARK}, then go on"),
        (f"postgres://app:{WORD}@db/app", "postgres://app:[redacted: url-password]@db/app"),
        (f"password={WORD} host=db", "password=[redacted: password] host=db"),
        ('{"password": "hun\'ter2"}', '{"password": "[redacted: password]"}'),
        ("a <private>b\nc</private> d", "a [redacted: private] d"),
        ("<private>a<private>b</private>c", "[redacted: private]c"),
        ("an open <private> tag hides nothing", "an open <private> tag hides nothing"),
        (f"{TOKEN} and {TOKEN}", f"{MARK} and {MARK}"),
        (f"api_key={TOKEN}", f"api_key={MARK}"),
        (
            f"pwd={WORD} password={WORD}, token={CANARY}",
            "pwd=[redacted: password] password=[redacted: password], token=[redacted: api-key]",
        ),
        (PEM, "a\n[redacted: private-key]\nb"),
        (f"token: secret={CANARY}", "token: secret=[redacted: api-key]"),
        (f"İ é password={CANARY}!", "İ é password=[redacted: password]"),
        ("api_key=" + CANARY * 40 + " x", "api_key=[redacted: api-key] x"),
    ],
)
def test_only_the_secret_goes(before: str, after: str) -> None:
    assert text(before) == after


@pytest.mark.parametrize(
    "line",
    [
        "token = base64encode(raw)",
        "api_key = key1",
        "access_key = vaults[0].first1key2",
        "password=self.password1",
        "password = read_password(2)",
        "pwd = os.getcwd()",
    ],
)
def test_code_that_fetches_a_secret_is_left_alone(line: str) -> None:
    assert text(line) == line


def test_a_token_is_found_wherever_it_stands() -> None:
    for left in ("", "\n", "\t", "=", ":", "/", "(", "é", "-", "_", '"', "\\n"):
        for right in ("", "\n", " ", ".", ")", '"', "é"):
            assert CANARY not in text(f"{left}{TOKEN}{right}"), (left, right)


@given(st.text(), st.sampled_from([s.text for s in secrets(7)]), st.text())
def test_what_was_redacted_stays_as_it_is(left: str, secret: str, right: str) -> None:
    once = text(left + secret + right)
    assert text(once) == once


def test_what_looks_random_is_left_alone_unless_asked_for() -> None:
    word = MAKE.some(30)
    assert text(f"see {word} there") == f"see {word} there"
    assert text(f"see {word} there", entropy=True) == "see [redacted: entropy] there"
    alarms = [t for t in harmless(3) if text(t, entropy=True) != text(t)]
    assert len(alarms) / len(harmless(3)) <= 0.05, alarms


LONG = {
    "words": "the quick brown fox ",
    "base64": MAKE.some(64) + MAKE.some(64),
    "needles": "token: key=secret password ",
    "assignments": "token:",
    "prefixes": "ghp_ sk- eyJ AKIA xoxb- ",
    "web tokens": "eyJ",
    "addresses": "http://a:b/c ",
    "colons": "://::::",
    "open tags": "<private>",
    "headers": "-----BEGIN PRIVATE KEY-----\n",
    "curls": "curl -X GET x ",
    "secrets": TOKEN + " ",
    "marks": MARK + " ",
}


def seconds(function: Callable[[], object], rounds: int = 3) -> float:
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return min(taken)


@pytest.mark.parametrize("piece", LONG.values(), ids=LONG)
def test_four_times_the_text_takes_about_four_times_as_long(piece: str) -> None:
    short, long = (
        {"t": (piece * (size // len(piece)))[:size], "list": [piece] * (size // 1_000)}
        for size in full((50_000, 200_000), (250_000, 1_000_000))
    )
    redactor = Redactor(entropy=True)
    brief = seconds(lambda: redactor.cleaned(short, Shape()))
    assert seconds(lambda: redactor.cleaned(long, Shape())) / max(brief, 0.01) < 8


# --- documents ------------------------------------------------------------------------------------


def test_every_place_is_told_and_the_callers_document_stays() -> None:
    document = {
        "state": {"focus": TOKEN, "items": ["a", {"note": f"x {TOKEN}"}, 7, None, True]},
        "db": {"password": f"{WORD}{WORD}", "user": "ann", "token": 5, "secret": [CANARY]},
        "odd names": {"a b": TOKEN, TOKEN: "x"},
    }
    before = copy.deepcopy(document)
    clean, taken, marked = cleaned(document)
    assert document == before
    assert taken == marked
    assert taken == [
        Found("state.focus", "github-token"),
        Found("state.items[1].note", "github-token"),
        Found("db.password", "password"),
        Found("db.secret[0]", "api-key"),
        Found("['odd names']['a b']", "github-token"),
        Found("['odd names']", "github-token"),
    ]
    assert clean == {
        "state": {"focus": MARK, "items": ["a", {"note": f"x {MARK}"}, 7, None, True]},
        "db": {
            "password": "[redacted: password]",
            "user": "ann",
            "token": 5,
            "secret": ["[redacted: api-key]"],
        },
        "odd names": {"a b": MARK, MARK: "x"},
    }


def test_names_that_become_alike_stay_apart() -> None:
    other = "ghp_" + MAKE.some(36)
    clean = cleaned({TOKEN: 1, other: 2, MARK: 3}).document
    assert clean == {f"{MARK} 2": 1, f"{MARK} 3": 2, MARK: 3}


def test_a_document_without_secrets_is_not_even_copied() -> None:
    document = {"text": "Rotate the API key: see the runbook; the token is fine", "n": [1.5]}
    assert cleaned(document).document is document


def test_what_was_taken_out_before_is_told_but_not_as_new() -> None:
    found = cleaned({"a": f"{MARK} and {MARK}", "b": TOKEN})
    assert found.taken == [Found("b", "github-token")]
    assert found.marked == [Found("a", "github-token"), Found("b", "github-token")]


def test_names_of_the_schema_and_what_has_a_form_are_ours() -> None:
    shape = Shape(fixed=frozenset(("at",)), names=frozenset(("at", "state", "other")))
    found = cleaned({"at": "2024", "state": "2024", "2024": 1}, shape, patterns=["20..", "state"])
    mark = "[redacted: pattern-1]"
    assert found.document == {"at": "2024", "state": mark, mark: 1}


# --- the team's own patterns ----------------------------------------------------------------------


def test_the_teams_patterns_are_taken_out_and_numbered() -> None:
    patterns = [r"ACME-\d{4}", r"badge (?P<secret>\d+)"]
    found = cleaned({"a": "ACME-1234 or badge 99"}, patterns=patterns)
    assert found.document == {"a": "[redacted: pattern-1] or badge [redacted: pattern-2]"}
    assert [rule for _, rule in found.taken] == ["pattern-1", "pattern-2"]


def test_the_readmes_example_does_what_it_says(home: Path) -> None:
    readme = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    home.mkdir()
    (home / "config.toml").write_text(readme.split("## Secrets")[1].split("```")[1].strip("toml\n"))
    service = CheckpointService(home=home)
    allowed, random = "ghp_tests" + MAKE.some(31), MAKE.some(30)
    focus = f"ACME-123456, badge 77, {allowed}, {random}"
    written = service.create_checkpoint("t", "a", {"current_focus": focus})
    assert written.execution_state.current_focus == (
        f"[redacted: pattern-1], badge [redacted: pattern-2], {allowed}, [redacted: entropy]"
    )
    service.close()


@pytest.mark.parametrize("pattern", ["redacted", r"\w+", "x*", ".", r"\[", "^.*$"])
def test_a_pattern_that_matches_marks_does_not_touch_them(pattern: str) -> None:
    once = text(f"a {TOKEN} b", patterns=[pattern])
    assert MARK in once
    assert text(once, patterns=[pattern]) == once


def test_what_is_allowed_is_no_secret() -> None:
    assert text(f"{TOKEN} x", allow=["ghp_.*"]) == f"{TOKEN} x"
    assert text(f"{TOKEN} x", allow=["ghp_"]) == f"{MARK} x", "all of it must match"
    assert text(f"password={WORD}", allow=[WORD]) == f"password={WORD}"
    document = {"password": f"{WORD}{WORD}"}
    assert cleaned(document, allow=[f"{WORD}{WORD}"]).document == document


@pytest.mark.parametrize("setting", ["patterns", "allow"])
def test_a_bad_pattern_is_named_and_nothing_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(f"SYNCD_REDACTION_{setting.upper()}", "fine\nbroken(")
    with pytest.raises(ConfigError, match=rf"^redaction\.{setting}, number 2, is not a ") as caught:
        CheckpointService(home=home).create_checkpoint("t", "a")
    assert "syncd config" in caught.value.remedy
    assert Node(home).store.rows("task_ids") == []


@pytest.mark.parametrize("setting", ["patterns", "allow"])
def test_a_pattern_that_takes_for_ever_is_stopped_and_nothing_is_written(
    home: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    monkeypatch.setenv(f"SYNCD_REDACTION_{setting.upper()}", "(q|qq)+$")
    text = f"password={'q' * 80}1" if setting == "allow" else "q" * 80 + "!"
    service = CheckpointService(home=home)
    started = time.monotonic()
    with pytest.raises(ConfigError, match=rf"^redaction\.{setting}, number 1, takes longer than"):
        service.create_checkpoint("t", "a", {"pending_items": [text] * 100})
    assert time.monotonic() - started < 30 * PATTERN_SECONDS
    assert service.node.store.rows("task_ids") == []
    service.close()


def test_patterns_have_one_time_for_all_texts_together(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_REDACTION_PATTERNS", "(q|qq)+$")
    service = CheckpointService(home=home)
    with pytest.raises(ConfigError, match="takes longer than"):
        service.create_checkpoint("t", "a", {"pending_items": ["q" * 30 + "!"] * 1_000})
    service.close()


# --- checkpoints ----------------------------------------------------------------------------------


@pytest.fixture
def unredacted(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[CheckpointService]:
    """The same home, with redaction off."""
    with monkeypatch.context() as context:
        context.setenv(*next(iter(OFF.items())))
        service = CheckpointService(home=home)
    yield service
    service.close()


def written_everywhere(service: CheckpointService) -> None:
    """The canary in all that a user can write."""
    made = service.create_checkpoint(
        "t",
        "a",
        ExecutionState(current_focus=TOKEN, pending_items=[f"try {TOKEN}"], error=TOKEN),
        {"key_decisions": ["a", {"decision": f"use {TOKEN}", "rationale": TOKEN}]},
        recovery={"continuation_prompt": f"go on with {TOKEN}"},
        workspace={"files": {TOKEN: "0"}},
        mission=TOKEN,
        x_unknown={"deep": [{TOKEN: [TOKEN]}]},
        reason="failure",
    )
    name = made.metadata.checkpoint_id
    service.update_checkpoint(name, {"execution_state": {"next_steps": [TOKEN]}, "x": TOKEN})
    service.finalize_checkpoint(name, sign_as=TOKEN, meaning=f"reviewed {TOKEN}")
    tasks.add(service.node, "described", title=TOKEN, description=f"about {TOKEN}")
    tasks.change(service.node, "described", title=f"now {TOKEN}")
    gone = service.create_checkpoint("t", "a").metadata.checkpoint_id
    retention.erase(service.node, gone, f"{TOKEN} was in it")


def test_with_redaction_off_the_search_finds_the_canary(unredacted: CheckpointService) -> None:
    written_everywhere(unredacted)
    unredacted.close()
    assert "context.db" in holding(unredacted.node.home)


def test_a_secret_reaches_no_file_of_the_home(
    service: CheckpointService, caplog: pytest.LogCaptureFixture
) -> None:
    written_everywhere(service)
    unmerged = holding(service.node.home)
    service.close()
    assert (unmerged, holding(service.node.home)) == (set(), set())
    assert CANARY not in caplog.text
    report = verify(service.node.store, service.node.key.public())
    assert report.problems == []


@pytest.mark.parametrize(
    "write",
    [
        lambda s: s.create_checkpoint("t", "a", {"current_focus": TOKEN}),
        lambda s: s.update_checkpoint(empty(s), {"execution_state": {"current_focus": TOKEN}}),
        lambda s: s.finalize_checkpoint(empty(s), sign_as=TOKEN, meaning="done"),
        lambda s: tasks.add(s.node, "described", title=TOKEN),
        lambda s: tasks.add(s.node, "described", description=TOKEN),
        lambda s: retention.erase(s.node, empty(s), TOKEN),
    ],
    ids=["create", "update", "finalize", "title", "description", "erase"],
)
def test_each_way_to_write_is_clean_by_itself(
    service: CheckpointService,
    unredacted: CheckpointService,
    write: Callable[[CheckpointService], object],
) -> None:
    write(service)
    assert holding(service.node.home) == set()
    if unredacted.node.store.row("task", ("described",)):
        tasks.change(unredacted.node, "described", title=TOKEN)
    else:
        write(unredacted)
    assert holding(service.node.home) != set(), "the search finds what is there"


def empty(service: CheckpointService) -> str:
    return service.create_checkpoint("t", "a").metadata.checkpoint_id


def test_the_checkpoint_tells_what_is_missing_in_it(
    service: CheckpointService, caplog: pytest.LogCaptureFixture
) -> None:
    state = {"current_focus": f"use {TOKEN}", "pending_items": ["a", f"b {TOKEN}"]}
    before = copy.deepcopy(state)
    with caplog.at_level(logging.WARNING, "syncd"):
        written = service.create_checkpoint("t", "a", state)
    assert state == before
    told = [(found.path, found.rule) for found in written.compliance.redactions]
    assert told == [
        ("execution_state.pending_items[1]", "github-token"),
        ("execution_state.current_focus", "github-token"),
    ]
    assert [r.getMessage() for r in caplog.records] == [
        "taken out before writing, as secrets: execution_state.pending_items[1] (github-token), "
        "execution_state.current_focus (github-token)"
    ]
    assert written.execution_state.current_focus == f"use {MARK}"
    assert written.execution_state.pending_items == ["a", f"b {MARK}"]
    read = service.get_checkpoint(written.metadata.checkpoint_id)
    assert read == written
    assert read.verify_integrity()


def test_a_checkpoint_without_secrets_says_nothing_of_redaction(
    service: CheckpointService, caplog: pytest.LogCaptureFixture
) -> None:
    written = service.create_checkpoint("t", "a", {"current_focus": "rotate the API key: today"})
    assert "redactions" not in written.to_dict()["compliance"]
    assert "redact" not in service.node.store.checkpoint(written.revision).entry.body.decode()
    assert caplog.records == []


def test_the_prompt_is_made_from_what_is_left(service: CheckpointService) -> None:
    """It shortens what is long, and half a token is not known as one."""
    written = service.create_checkpoint("t", "a", {"pending_items": ["x" * 180 + " " + TOKEN]})
    prompt = written.recovery.continuation_prompt
    assert "x" * 180 in prompt
    assert TOKEN[:8] not in prompt
    assert [f.path for f in written.compliance.redactions] == ["execution_state.pending_items[0]"]


def test_a_later_version_is_clean_of_what_was_written_before_redaction_was_on(
    service: CheckpointService, unredacted: CheckpointService
) -> None:
    made = unredacted.create_checkpoint("t", "a", {"pending_items": ["x" * 180 + " " + TOKEN]})
    assert TOKEN[:8] in made.recovery.continuation_prompt
    final = service.finalize_checkpoint(made.metadata.checkpoint_id)
    assert TOKEN[:8] not in json.dumps(final.to_dict())
    assert [f.path for f in final.compliance.redactions] == ["execution_state.pending_items[0]"]


def test_an_update_keeps_telling_until_the_place_is_gone(
    service: CheckpointService, caplog: pytest.LogCaptureFixture
) -> None:
    made = service.create_checkpoint("t", "a", {"current_focus": TOKEN, "pending_items": ["p"]})
    caplog.clear()
    name = made.metadata.checkpoint_id
    longer = service.update_checkpoint(name, {"execution_state": {"pending_items": ["p", "q"]}})
    assert longer.compliance.redactions == made.compliance.redactions
    assert service.get_checkpoint(name) == longer
    assert caplog.records == [], "nothing new was taken out"
    gone = service.update_checkpoint(name, {"execution_state": {"current_focus": "tests"}})
    assert gone.compliance.redactions == []
    assert service.get_checkpoint(name) == gone
    final = service.finalize_checkpoint(name)
    assert service.get_checkpoint(name) == final


def test_a_finalized_checkpoint_tells_the_same_as_before(service: CheckpointService) -> None:
    made = service.create_checkpoint("t", "a", {"pending_items": [TOKEN]})
    final = service.finalize_checkpoint(made.metadata.checkpoint_id)
    assert final.compliance.redactions == made.compliance.redactions
    assert final.recovery.continuation_prompt == made.recovery.continuation_prompt


def test_redactions_that_somebody_else_claims_are_not_believed(service: CheckpointService) -> None:
    made = service.create_checkpoint("t", "a", {"current_focus": TOKEN})
    name = made.metadata.checkpoint_id
    claimed = {"compliance": {"redactions": [{"path": "a", "rule": "b"}]}}
    assert service.update_checkpoint(name, claimed).compliance == made.compliance.amended(
        event_log_ref=service.get_checkpoint(name).compliance.event_log_ref,
        hash=service.get_checkpoint(name).compliance.hash,
    )


def test_a_pattern_for_dates_or_fields_leaves_times_and_fields_alone(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_REDACTION_PATTERNS", "20\\d\\d-\\d\\d\n.*_focus")
    service = CheckpointService(home=home)
    written = service.create_checkpoint("t", "a", {"current_focus": "born 1999-01, 2001-02"})
    assert written.execution_state.current_focus == "born 1999-01, [redacted: pattern-1]"
    step = {"step": "x", "timestamp": "2024-05-01T10:00:00+00:00"}
    dated = service.create_checkpoint("t", "a", {"completed_items": [step]})
    assert dated.compliance.redactions == [], "a time is a time"
    service.close()


def test_what_a_pattern_makes_invalid_is_refused_with_its_place(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_REDACTION_PATTERNS", "passed")
    service = CheckpointService(home=home)
    checks = {"results": [{"activity": "tests passed", "status": "passed"}]}
    with pytest.raises(InvalidInputError, match=r"verification\.results\.0\.status") as caught:
        service.create_checkpoint("t", "a", verification=checks)
    assert "redaction.patterns" in caught.value.remedy
    assert service.node.store.rows("task_ids") == []
    service.close()


def test_switched_off_everything_is_written_as_it_came(unredacted: CheckpointService) -> None:
    written = unredacted.create_checkpoint(TOKEN, "a", {"current_focus": TOKEN})
    assert written.execution_state.current_focus == TOKEN
    assert written.compliance.redactions == []


# --- what stays clear -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "write"),
    [
        ("metadata.task_id", lambda s: s.create_checkpoint(TOKEN, "a")),
        ("metadata.agent_id", lambda s: s.create_checkpoint("t", f"agent {TOKEN}")),
        ("metadata.agent_type", lambda s: s.create_checkpoint("t", "a", agent_type=TOKEN)),
        ("metadata.checkpoint_id", lambda s: s.create_checkpoint("t", "a", checkpoint_id=TOKEN)),
        (
            "recovery.last_successful_state",
            lambda s: s.create_checkpoint("t", "a", recovery={"last_successful_state": TOKEN}),
        ),
        (
            "metadata.agent_id",
            lambda s: s.update_checkpoint(empty(s), {"metadata": {"agent_id": TOKEN}}),
        ),
        ("task_id", lambda s: tasks.add(s.node, TOKEN)),
    ],
)
def test_a_secret_where_everybody_can_read_it_is_refused(
    service: CheckpointService, path: str, write: Callable[[CheckpointService], object]
) -> None:
    with pytest.raises(InvalidInputError) as caught:
        write(service)
    error = caught.value
    assert error.message.startswith(f"{path} holds what looks like a secret (github-token)")
    assert "redaction.allow" in error.remedy
    assert CANARY not in error.message + error.remedy
    service.close()
    assert holding(service.node.home) == set()


def test_an_id_that_is_allowed_is_taken(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SYNCD_REDACTION_ALLOW", TOKEN)
    service = CheckpointService(home=home)
    assert service.create_checkpoint(TOKEN, "a").metadata.task_id == TOKEN
    service.close()


# --- the command line -----------------------------------------------------------------------------


def run(*arguments: str, **environment: str) -> Result:
    folder = Path(os.environ["SYNCD_HOME"]).parent
    return the_runner().run(arguments, {**os.environ, **environment}, folder=folder)


CREATE = ("checkpoint", "create", "--task", "t", "--agent", "a", "--json")


def test_the_command_warns_of_each_place_and_prints_no_secret(home: Path) -> None:
    code, out, err = run(*CREATE, "--focus", f"use {TOKEN}", "--decision", f"password={WORD}")
    assert code == 0, err
    warned = (
        "Warning: taken out before writing, as secrets: execution_state.current_focus "
        "(github-token), context_summary.key_decisions[0] (password)\n"
    )
    assert err == warned
    document = json.loads(out)
    assert document["compliance"]["redactions"] == [
        {"path": "execution_state.current_focus", "rule": "github-token"},
        {"path": "context_summary.key_decisions[0]", "rule": "password"},
    ]
    assert CANARY not in out
    assert holding(home) == holding(home, WORD) == set()
    shown = run("checkpoint", "latest", "t")[1]
    assert "execution_state.current_focus (github-token)" in shown
    planted = run(*CREATE, "--focus", f"use {TOKEN}", **OFF)
    assert CANARY in planted[1]
    assert holding(home) != set(), "the search finds what is there"


@pytest.mark.parametrize("option", ["--title", "--description"])
def test_describing_a_task_warns_too(home: Path, option: str) -> None:
    code, out, err = run("task", "add", "t", option, f"about {TOKEN}", "--json")
    assert (code, CANARY in out) == (0, False)
    assert err == f"Warning: taken out before writing, as secrets: {option[2:]} (github-token)\n"
    code, out, err = run("task", "set", "t", option, f"now {TOKEN}", "--json")
    assert json.loads(out)[option[2:]] == f"now {MARK}"
    assert err == f"Warning: taken out before writing, as secrets: {option[2:]} (github-token)\n"


def test_the_reason_for_erasing_is_redacted_and_warned_of(home: Path) -> None:
    name = json.loads(run(*CREATE, "--pending", "x")[1])["metadata"]["checkpoint_id"]
    code, out, err = run("erase", name, "--yes", "--reason", f"{TOKEN} in it")
    assert (code, CANARY in out + err) == (0, False)
    assert err == "Warning: taken out before writing, as secrets: reason (github-token)\n"
    assert holding(home) == set()
    assert MARK in run("checkpoint", "show", name)[2]


@pytest.mark.parametrize(
    "arguments",
    [
        ("checkpoint", "show", TOKEN),
        ("checkpoint", "create", "--task", "t", "--agent", "a", "--status", TOKEN),
        ("checkpoint", "create", "--task", TOKEN, "--agent", "a"),
        ("checkpoint", "create", f"--{TOKEN}"),
        ("task", "set", TOKEN),
        ("task", "add", "t", "--status", TOKEN),
    ],
)
@pytest.mark.parametrize("form", [(), ("--json",)])
def test_an_error_does_not_repeat_a_secret(arguments: tuple[str, ...], form: tuple[str]) -> None:
    code, out, err = run(*arguments, *form)
    assert code != 0
    assert err
    assert CANARY not in out + err


@pytest.mark.parametrize(
    ("words", "path"),
    [(("task", "defer", "t", "--reason", TOKEN), "deferred.reason"),
     (("message", "send", "--to", "ann", "--task", "t", TOKEN), "text")],
)  # fmt: skip
def test_a_person_is_warned_of_what_was_taken_out_and_where(
    words: tuple[str, ...], path: str
) -> None:
    run("task", "add", "t")
    code, _, err = run(*words)
    assert code == 0, err
    assert err.startswith("Warning: taken out before writing, as secrets: ")
    assert f" {path} (" in err


# --- the replica ----------------------------------------------------------------------------------


def test_a_secret_does_not_reach_the_replica(crew: Team) -> None:
    ann, planted = crew.device(), "planted-canary"
    written_everywhere(ann.service)
    ann.service.create_checkpoint("t", "a", {"current_focus": planted})
    ann.sync()
    stored = str(crew.cloud.sql("SELECT l::text FROM syncd.log l"))
    shown = str(crew.cloud.sql("SELECT c::text FROM syncd.checkpoints c"))
    assert planted.encode().hex() in stored
    assert planted in shown
    for text in (CANARY, CANARY.encode().hex()):
        assert text not in stored + shown
