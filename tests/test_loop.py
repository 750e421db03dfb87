"""The supervised loop: real commands that end well, badly, late or never."""

from __future__ import annotations

import io
import json
import os
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from daemons import until
from machines import SYNCD, Machine, Runner, Team, runner, team

from syncd.cli.loop import _Screen
from syncd.loop.child import TAIL_BYTES, Command, Ran, run
from syncd.loop.judge import (
    BLOCKED,
    BUDGET,
    COMPLETE,
    CRASHED,
    HANDOFF,
    ITERATIONS,
    NO_PROGRESS,
    RATE_LIMITED,
    SAME_ERROR,
    TIMED_OUT,
    WENT_ON,
    Found,
    Iteration,
    Limits,
    hopeless,
    judged,
    last_words,
    pause,
    verdict,
)

__all__ = ["runner", "team"]

# --- one run --------------------------------------------------------------------------------------


def ran(
    program: str, folder: Path, seconds: float = 20.0, prompt: bytes = b"",
    tick: Callable[[], None] = lambda: None, shown: list[bytes] | None = None,
) -> Ran:  # fmt: skip
    words = [sys.executable, "-c", program, str(folder)]
    command = Command(words, prompt, dict(os.environ), folder)
    return run(command, seconds, (shown if shown is not None else []).append, tick)


def test_a_command_gets_its_prompt_and_is_heard(tmp_path: Path) -> None:
    shown: list[bytes] = []
    done = ran("import sys; print(sys.stdin.read()[::-1]); sys.exit(3)", tmp_path, prompt=b"abc",
               shown=shown)  # fmt: skip
    assert (done.exit_code, done.timed_out, done.tail) == (3, False, "cba\n")
    assert b"".join(shown) == b"cba\n"


@pytest.mark.parametrize(
    "program",
    [
        "pass",
        "import sys; sys.stdin.close()",
        "import os; os.close(0); os.close(1); os.close(2)",
        "import sys; sys.stdin.read(10)",
    ],
)
def test_one_that_does_not_read_its_prompt_holds_nothing_up(tmp_path: Path, program: str) -> None:
    assert ran(program, tmp_path, prompt=b"x" * 3_000_000).exit_code == 0


def test_one_that_closes_its_output_and_works_on_is_waited_for(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys, time; os.close(1); os.close(2); time.sleep(0.5)\n"
        "pathlib.Path(sys.argv[1], 'done').touch()"
    )
    assert ran(program, tmp_path).exit_code == 0
    assert (tmp_path / "done").exists()


def test_a_hundred_megabytes_of_output_take_no_memory_and_the_end_is_kept(tmp_path: Path) -> None:
    program = "import sys\nfor _ in range(100): sys.stdout.write('y' * 1_000_000)\nprint('the end')"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    done = run(Command([sys.executable, "-c", program], b"", dict(os.environ), tmp_path), 60,
               lambda _: None, lambda: None)  # fmt: skip
    assert done.exit_code == 0
    assert done.tail.endswith("the end\n")
    assert len(done.tail) <= TAIL_BYTES
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 30_000


NOTES_ITS_GROUP = (
    "import os, pathlib, sys\npathlib.Path(sys.argv[1], 'group').write_text(str(os.getpgrp()))\n"
)
HANGS = "import time; time.sleep(100)"
IGNORES = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {HANGS}"
FORKS = f"import os; os.fork(); os.fork(); {HANGS}"


@pytest.mark.parametrize("program", [HANGS, FORKS])
def test_one_that_hangs_is_ended_with_all_that_it_started(tmp_path: Path, program: str) -> None:
    done = ran(NOTES_ITS_GROUP + program, tmp_path, seconds=0.7)
    assert done.timed_out
    assert done.exit_code < 0
    assert gone(int((tmp_path / "group").read_text()))


def test_one_that_does_not_heed_being_asked_is_made_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("syncd.loop.child._GRACE_SECONDS", 0.3)
    done = ran(IGNORES, tmp_path, seconds=0.7)
    assert (done.exit_code, done.timed_out) == (-9, True)


def test_what_a_command_leaves_running_with_its_output_open_is_not_waited_for(
    tmp_path: Path,
) -> None:
    program = (
        "import os, pathlib, sys, time\n"
        "if os.fork() == 0: time.sleep(30); os._exit(0)\n"
        "pathlib.Path(sys.argv[1], 'group').write_text(str(os.getpgrp())); print('done')"
    )
    began = time.monotonic()
    done = ran(program, tmp_path)
    assert (done.exit_code, done.tail) == (0, "done\n")
    assert time.monotonic() - began < 15
    os.killpg(int((tmp_path / "group").read_text()), 9)


def test_whatever_interrupts_the_loop_ends_the_command_too(tmp_path: Path) -> None:
    def interrupted() -> None:
        if (tmp_path / "group").exists() and (tmp_path / "group").read_text():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ran(NOTES_ITS_GROUP + HANGS, tmp_path, tick=interrupted)
    assert gone(int((tmp_path / "group").read_text()))


def gone(group: int) -> bool:
    def ended() -> bool:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        return False

    until(ended, 10)
    return True


# --- what came of it ------------------------------------------------------------------------------

USUAL = Found(0, False, "", "in_progress", "implementing", "", "", "mark", False)


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, WENT_ON),
        ({"status": "complete"}, COMPLETE),
        ({"status": "complete", "exit_code": 1}, COMPLETE),
        ({"phase": "handoff"}, HANDOFF),
        ({"status": "blocked"}, BLOCKED),
        ({"status": "escalated"}, BLOCKED),
        ({"exit_code": 1}, CRASHED),
        ({"exit_code": -9}, CRASHED),
        ({"exit_code": 1, "phase": "handoff"}, CRASHED),
        ({"timed_out": True, "exit_code": -15}, TIMED_OUT),
        ({"exit_code": 1, "tail": "Error 429: Too Many Requests"}, RATE_LIMITED),
        ({"exit_code": 1, "tail": "rate_limit_error"}, RATE_LIMITED),
        ({"exit_code": 0, "tail": "I wrote about rate limits"}, WENT_ON),
        ({"reason": "rate_limit"}, RATE_LIMITED),
    ],
)
def test_what_came_of_a_run(changes: dict[str, object], outcome: str) -> None:
    assert judged(USUAL._replace(**changes)).outcome == outcome  # type: ignore[arg-type]


def its(*outcomes: str, error: str = "", mark: str = "") -> list[Iteration]:
    """Each with a mark of its own, unless one is given."""
    return [Iteration(word, error, mark or str(number)) for number, word in enumerate(outcomes)]


LIMITS = Limits(iterations=10)


def test_the_loop_goes_on_until_the_task_is_complete() -> None:
    assert verdict(its(WENT_ON), LIMITS) == ""
    assert verdict(its(WENT_ON, COMPLETE), LIMITS) == COMPLETE
    assert verdict(its(WENT_ON, BLOCKED), LIMITS) == BLOCKED
    assert verdict(its(*[WENT_ON] * 9), LIMITS) == ""
    assert verdict(its(*[WENT_ON] * 10), LIMITS) == ITERATIONS


def test_a_spent_budget_ends_it_unless_the_work_is_done() -> None:
    assert verdict(its(WENT_ON), LIMITS, over_budget=True) == BUDGET
    assert verdict(its(COMPLETE), LIMITS, over_budget=True) == COMPLETE


@pytest.mark.parametrize(("runs", "word"), [(2, ""), (3, NO_PROGRESS), (4, NO_PROGRESS)])
def test_three_runs_that_change_nothing_are_enough(runs: int, word: str) -> None:
    assert verdict(its(*[WENT_ON] * runs, mark="same"), LIMITS, "same") == word


def test_the_first_change_counts_as_progress() -> None:
    assert verdict(its(*[WENT_ON] * 3, mark="new"), LIMITS, "old") == ""
    assert verdict(its(*[WENT_ON] * 4, mark="new"), LIMITS, "old") == NO_PROGRESS


@pytest.mark.parametrize(("runs", "word"), [(4, ""), (5, SAME_ERROR), (6, SAME_ERROR)])
def test_five_times_the_same_error_are_enough(runs: int, word: str) -> None:
    history = [
        Iteration(CRASHED, f"line {number} at 0x{number}f: boom", str(number))
        for number in range(runs)
    ]
    assert verdict(history, LIMITS) == word


def test_another_error_begins_anew() -> None:
    history = its(*[CRASHED] * 4, error="boom") + its(CRASHED, error="bang")
    assert verdict(history, LIMITS) == ""


def test_being_refused_for_a_while_is_no_lack_of_progress() -> None:
    history = its(*[RATE_LIMITED] * 4, mark="same")
    assert verdict(history, Limits(iterations=99), "same") == ""


@pytest.mark.parametrize(
    ("tail", "refusals", "seconds"),
    [("", 1, 30), ("", 2, 60), ("", 3, 120), ("", 50, 30 * 64), ("retry after 7 s", 3, 7),
     ("Please try again in 45 seconds", 1, 45), ("Retry-After: 12", 1, 12)],
)  # fmt: skip
def test_how_long_to_wait_after_being_refused(tail: str, refusals: int, seconds: float) -> None:
    assert pause(tail, refusals, 30.0) == seconds


def test_the_last_words_are_the_last_line_that_says_anything() -> None:
    assert last_words("one\ntwo \n\n  \n") == "two"
    assert last_words("") == ""
    assert len(last_words("x" * 10_000)) == 300


# --- the loop -------------------------------------------------------------------------------------

# Takes its part of a list of what it does in each iteration.
AGENT = """
import json, os, subprocess, sys
said = sys.stdin.read() if "-" not in sys.argv[2:] else ""
number = int(os.environ["SYNCD_ITERATION"])
with open("runs", "a") as file:
    who = {name: os.environ[name] for name in os.environ if name.startswith("SYNCD_")}
    file.write(json.dumps({"stdin": said, "argv": sys.argv[2:], **who}) + "\\n")
parts = sys.argv[1].split(";")
part = parts[min(number, len(parts)) - 1]
if part.startswith("exit"):
    print("it went wrong in line", number)
    sys.exit(int(part.split()[1]))
if part == "hang":
    import time; time.sleep(60)
if part == "nonsense":
    words = ["checkpoint", "create", "--file", "-"]
    made = subprocess.run([sys.executable, "-m", "syncd", *words], input=b"{\\"phase\\": ")
    sys.exit(made.returncode)
if part == "damage":
    import sqlite3
    words = ["checkpoint", "create", "--completed", "never seen again"]
    subprocess.run([sys.executable, "-m", "syncd", *words], check=True, stdout=subprocess.DEVNULL)
    with sqlite3.connect(os.path.join(os.environ["SYNCD_HOME"], "context.db")) as database:
        database.execute("UPDATE log SET body = x'7b7d' WHERE seq = (SELECT MAX(seq) FROM log "
                         "WHERE entity = 'checkpoint')")
    sys.exit(0)
if part.startswith("commit"):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    for words in (["add", "."], [*identity, "commit", "-qm", part]):
        subprocess.run(["git", *words], check=True)
elif part:
    words = ["checkpoint", "create", *part.split(), "--tokens", "10"]
    if part.startswith("handoff"):
        words = part.split()
    subprocess.run([sys.executable, "-m", "syncd", *words], check=True, stdout=subprocess.DEVNULL)
"""


class Bench:
    """A place where agents work."""

    def __init__(self, machine: Machine, folder: Path) -> None:
        self.machine = machine
        self.folder = folder
        self.said = ""
        (folder / "agent.py").write_text(AGENT)

    def loop(self, plan: str, *options: str, words: tuple[str, ...] = ()) -> tuple[int, Any]:
        agent = (sys.executable, "agent.py", plan, *words)
        start = (SYNCD, "--home", str(self.machine.home), "loop", "--task", "t", "--json")
        done = subprocess.run([*start, *options, "--", *agent], cwd=self.folder, text=True,
                              capture_output=True, timeout=60)  # fmt: skip
        assert done.stdout, done.stderr
        self.said = done.stderr
        return done.returncode, json.loads(done.stdout)

    def runs(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / "runs").read_text().splitlines()]

    def latest(self) -> Any:
        return self.machine.json("checkpoint", "latest", "t")


@pytest.fixture
def place(runner: Runner, home: Path, tmp_path: Path) -> Bench:
    folder = tmp_path / "work"
    folder.mkdir()
    return Bench(Machine(runner, home), folder)


def test_it_runs_until_the_task_is_complete_and_each_run_begins_where_the_last_ended(
    place: Bench,
) -> None:
    code, done = place.loop("--completed one --pending two;--completed two --status complete")
    assert (code, done["stopped"], done["iterations"]) == (0, "complete", 2)
    assert done["tokens"] == 20
    first, second = place.runs()
    assert "Nothing was recorded" in first["stdin"]
    assert "- one" in second["stdin"]
    assert first["SYNCD_TASK"] == second["SYNCD_TASK"] == "t"
    assert first["SYNCD_SESSION"] != second["SYNCD_SESSION"]
    assert (first["SYNCD_ITERATION"], second["SYNCD_ITERATION"]) == ("1", "2")
    assert place.latest()["metadata"]["agent_id"] == second["SYNCD_AGENT"]


def test_what_is_complete_is_left_alone_until_somebody_says_what_is_left(place: Bench) -> None:
    plan = "--completed one --status complete;--completed two --status complete"
    place.loop(plan)
    newest = place.latest()
    code, done = place.loop(plan)
    assert (code, done["stopped"], done["iterations"]) == (0, "complete", 0)
    assert done["checkpoint_id"] == newest["metadata"]["checkpoint_id"]
    assert (len(place.runs()), place.latest()) == (1, newest)
    start = ("loop", "--task", "t", "--", sys.executable)
    assert "checkpoint create --continue --task t" in place.machine.ok(*start).out
    words = ("--continue", "--agent", "ann", "--status", "in_progress", "--pending", "two")
    place.machine.create("t", *words)
    code, done = place.loop(plan)
    assert (code, done["iterations"], len(place.runs())) == (0, 1, 2)


def test_the_prompt_comes_as_a_word_or_as_a_file_where_the_command_says_so(place: Bench) -> None:
    plan = "--completed one --status complete"
    place.loop(plan, words=("-", "{prompt}", "{prompt_file}"))
    [run] = place.runs()
    assert "Nothing was recorded" in run["argv"][1]
    assert run["argv"][2] == run["SYNCD_PROMPT_FILE"]
    assert run["stdin"] == ""


def test_an_agent_that_writes_nothing_has_it_written_for_it(place: Bench) -> None:
    code, done = place.loop("--completed one;exit 7;", "--max-iterations", "2")
    assert (code, done["stopped"], done["outcomes"]) == (3, "iterations", ["went_on", "crashed"])
    latest = place.latest()
    assert latest["execution_state"]["completed_items"] == ["one"], "nothing that was done is lost"
    assert latest["execution_state"]["error"] == "it went wrong in line 2"
    assert "ended with 7" in latest["recovery"]["resume_instructions"]
    assert latest["metadata"]["reason"] == "failure"


def test_a_document_that_is_none_is_refused_and_the_work_before_it_stays(place: Bench) -> None:
    code, done = place.loop("--completed one;nonsense;--completed two --status complete")
    assert (code, done["outcomes"]) == (0, ["went_on", "crashed", "complete"])
    assert "ended with 2" in place.runs()[2]["stdin"]
    assert "- one" in place.runs()[2]["stdin"]


def test_a_checkpoint_that_was_damaged_is_not_what_the_next_run_goes_on_from(place: Bench) -> None:
    code, done = place.loop("--completed one;damage;--continue --completed two --status complete")
    assert (code, done["outcomes"]) == (0, ["went_on", "went_on", "complete"])
    assert "never seen again" not in place.runs()[2]["stdin"]
    assert place.said.count("is passed over") == 1
    assert place.latest()["execution_state"]["completed_items"] == ["one", "two"]


def test_runs_that_change_nothing_end_it_and_files_count_as_a_change(place: Bench) -> None:
    code, done = place.loop("", "--max-iterations", "9")
    assert (code, done["stopped"], done["iterations"]) == (3, "no_progress", 3)


def test_the_same_error_five_times_ends_it_though_something_changes(place: Bench) -> None:
    subprocess.run(["git", "init", "-q", str(place.folder)], check=True)
    code, done = place.loop("exit 3", "--max-iterations", "9")  # each run adds a line to a file
    assert (code, done["stopped"], done["iterations"]) == (1, "same_error", 5)


def test_one_that_hangs_is_ended_after_its_time(place: Bench) -> None:
    code, done = place.loop("hang", "--timeout", "0.02", "--max-iterations", "1")
    assert (code, done["outcomes"]) == (3, ["timed_out"])
    assert "ran out of time" in place.latest()["recovery"]["resume_instructions"]


def test_a_spent_budget_ends_it(place: Bench) -> None:
    plan = ";".join(f"--completed step{number}" for number in range(9))
    code, done = place.loop(plan, "--budget", "20")
    assert (code, done["stopped"], done["tokens"]) == (3, "budget", 30)


def test_a_blocked_task_waits_for_a_person(place: Bench) -> None:
    code, done = place.loop("--blocked decision --status blocked")
    assert (code, done["stopped"], done["iterations"]) == (3, "blocked", 1)


def test_after_a_hand_off_the_next_phases_agent_runs_if_it_has_a_command(place: Bench) -> None:
    next_plan = "x;x;--completed checked --status complete"
    command = [sys.executable, "agent.py", next_plan, "as qa"]
    (place.machine.home).mkdir(exist_ok=True)
    (place.machine.home / "config.toml").write_text(
        f"[agents.qa]\ncommand = {json.dumps(command)}\n"
    )
    code, done = place.loop("--phase implementing --completed a;--phase handoff --completed b")
    assert (code, done["outcomes"]) == (0, ["went_on", "handoff", "complete"])
    assert [run["SYNCD_AGENT_TYPE"] for run in place.runs()] == ["implementation"] * 2 + ["qa"]
    assert place.runs()[-1]["argv"] == ["as qa"]


def test_an_agent_without_a_command_in_the_settings_is_named(place: Bench) -> None:
    place.machine.home.mkdir(exist_ok=True)
    (place.machine.home / "config.toml").write_text("[agents.qa]\ncomand = 'x'\n")
    result = place.machine.run("loop", "--task", "t", "--json", "--", "true")
    assert result.code == 2
    assert "[agents.qa] needs a command" in result.error()["message"]


def test_a_command_that_does_not_exist_is_said_at_once(place: Bench) -> None:
    result = place.machine.run("loop", "--task", "t", "--json", "--", "no-such-agent")
    assert result.code == 2
    assert "no-such-agent" in result.error()["message"]


def test_what_an_agent_offers_is_taken_by_one_of_the_type_it_asks_for(place: Bench) -> None:
    command = [sys.executable, "agent.py", "x;x;--completed checked --status complete"]
    place.machine.home.mkdir(exist_ok=True)
    (place.machine.home / "config.toml").write_text(
        f"[agents.qa]\ncommand = {json.dumps(command)}\n"
    )
    code, done = place.loop("--phase implementing --completed a;handoff request --target qa")
    assert (code, done["outcomes"]) == (0, ["went_on", "handoff", "complete"])
    [offer] = place.machine.json("handoff", "list", "--all")
    assert (offer["state"], offer["from_agent"]) == ("acknowledged", "implementation-2")
    assert offer["holder"] == place.runs()[-1]["SYNCD_AGENT"] == "qa-3"
    latest = place.latest()
    assert latest["metadata"]["agent_type"] == "qa"
    assert latest["recovery"]["last_successful_state"] == offer["checkpoint_id"]


def test_a_loop_that_goes_on_with_a_task_goes_on_counting(place: Bench) -> None:
    """An agent that gave its work away must not come back under the same name."""
    place.loop("--completed one", "--max-iterations", "1")
    place.loop("x;--completed two --status complete")
    assert [run["SYNCD_AGENT"] for run in place.runs()] == ["implementation-1", "implementation-2"]
    assert place.latest()["metadata"]["iteration"] == 2
    assert place.latest()["metadata"]["session_id"] == place.runs()[-1]["SYNCD_SESSION"]


def test_what_an_agent_committed_is_told_if_it_says_nothing_itself(place: Bench) -> None:
    subprocess.run(["git", "init", "-q", str(place.folder)], check=True)
    place.loop("commit the first;commit the second", "--max-iterations", "2")
    latest = place.latest()
    assert "commit the second" in latest["recovery"]["resume_instructions"]
    assert "commit the first" not in latest["recovery"]["resume_instructions"]
    assert latest["metrics"]["files_modified"] == ["runs"]
    assert "runs" in latest["workspace"]["files"]


def test_work_that_another_machine_holds_is_left_to_it(team: Team, place: Bench) -> None:
    here, there = team.machine(), team.machine()
    there.create("t")
    handoff = there.json("handoff", "request", "--task", "t")["id"]
    team.settle(there, here)
    there.ok("handoff", "accept", handoff, "--agent", "theirs")
    team.settle(there, here)
    code, done = Bench(here, place.folder).loop("--completed one")
    assert (code, done["stopped"], done["iterations"]) == (3, "taken", 0)
    assert not (place.folder / "runs").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_whatever_ends_the_loop_ends_the_agent_and_leaves_a_checkpoint(
    place: Bench, number: signal.Signals
) -> None:
    words = [SYNCD, "--home", str(place.machine.home), "loop", "--task", "t", "--", sys.executable,
             "agent.py", "hang"]  # fmt: skip
    with subprocess.Popen(words, cwd=place.folder, stderr=subprocess.PIPE, text=True) as process:
        until((place.folder / "runs").exists)
        process.send_signal(number)
        _, said = process.communicate(timeout=20)
    assert process.returncode == 130
    latest = place.latest()
    name = latest["metadata"]["checkpoint_id"]
    assert f"Interrupted. The last checkpoint that was left is {name}" in said
    assert "`syncd resume t`" in said
    assert "interrupted by the user" in latest["recovery"]["resume_instructions"]
    assert place.machine.json("agents") == []


@pytest.mark.parametrize("plan", ["", "exit 3", "--completed one", "--agent zoe --completed one"])
def test_nobody_waits_for_its_agents_when_it_has_ended(place: Bench, plan: str) -> None:
    place.loop(plan, "--max-iterations", "1")
    assert place.machine.json("agents") == []
    who = "zoe" if "zoe" in plan else "implementation-1"
    shown = place.machine.json("agents", "--all")
    assert [(a["agent_id"], a["state"]) for a in shown] == [(who, "ended")]


def test_a_second_loop_on_a_task_is_refused_while_the_first_one_runs(place: Bench) -> None:
    words = [SYNCD, "--home", str(place.machine.home), "loop", "--task", "t", "--", sys.executable,
             "agent.py", "hang"]  # fmt: skip
    with subprocess.Popen(words, cwd=place.folder, stderr=subprocess.DEVNULL) as process:
        until((place.folder / "runs").exists)
        error = place.machine.fails(7, "loop", "--task", "t", "--", "true")
        other = place.machine.run("loop", "--task", "u", "--max-iterations", "1", "--", "true")
        process.send_signal(signal.SIGINT)
    assert "runs 't'" in error["message"]
    assert "--task t" in error["remedy"]
    assert other.code == 3, "another task is nobody's"
    again = place.machine.run("loop", "--task", "t", "--max-iterations", "1", "--", "true")
    assert again.code == 3


def test_why_the_last_run_failed_is_quoted_and_the_task_named(place: Bench) -> None:
    shell = "echo 'boom: cannot open x' >&2; exit 3"
    said = place.machine.run("loop", "--task", "my task", "--", "sh", "-c", shell)
    assert said.code == 3
    assert "completed nothing and changed nothing. 3 runs," in said.out
    assert "The last run ended with exit code 3: boom: cannot open x" in said.out
    assert "`syncd resume 'my task'`" in said.out
    _, done = place.loop("exit 7", "--max-iterations", "1")
    assert (done["exit_code"], done["error"]) == (7, "it went wrong in line 1")


def test_the_tokens_of_the_task_are_not_told_as_those_of_the_run(place: Bench) -> None:
    place.machine.create("t", "--tokens", "4800")
    words = ("loop", "--task", "t", "--max-iterations", "1", "--", "true")
    said = place.machine.run(*words).out
    assert re.search(r"1 run, [\d.]+ s\.", said), "and no tokens between the two"
    assert "The task has taken 4,800 tokens so far, earlier runs included." in said


# --- giving up ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "outcome", "hopeless_"),
    [(SAME_ERROR, CRASHED, True), (SAME_ERROR, RATE_LIMITED, True), (NO_PROGRESS, CRASHED, True),
     (NO_PROGRESS, TIMED_OUT, True), (NO_PROGRESS, WENT_ON, False), (ITERATIONS, CRASHED, False),
     (BUDGET, CRASHED, False), (COMPLETE, COMPLETE, False)],
)  # fmt: skip
def test_a_person_is_needed_where_more_runs_would_fail_too(
    stop: str, outcome: str, hopeless_: bool
) -> None:
    assert hopeless(stop, Iteration(outcome, "boom", "mark")) == hopeless_


def test_a_loop_that_gives_up_after_crashes_marks_the_task_and_asks_a_person(place: Bench) -> None:
    code, done = place.loop("exit 7", "--max-iterations", "9")
    assert (code, done["stopped"]) == (3, "no_progress")
    shown = place.machine.json("task", "show", "t")
    assert (shown["status"], shown["escalation"]) == ("blocked", done["escalation"])
    assert shown["escalation"]["by"] == "syncd loop"
    assert shown["escalation"]["reason"] == (
        "3 runs of `syncd loop` in a row completed nothing; the last one ended with 7: it went "
        "wrong in line 3"
    )
    assert "`syncd task resolve t --resolution …`" in shown["escalation"]["decision_needed"]
    assert "The task is blocked" in place.machine.ok("resume", "t").out


def test_a_loop_that_gives_up_after_the_same_error_or_in_vain_asks_a_person_too(
    place: Bench,
) -> None:
    subprocess.run(["git", "init", "-q", str(place.folder)], check=True)
    code, done = place.loop("exit 3", "--max-iterations", "9")
    assert (code, done["stopped"]) == (1, "same_error")
    assert done["escalation"]["reason"].startswith("5 runs of `syncd loop` in a row ended with: it")
    assert place.machine.json("task", "show", "t")["status"] == "blocked"
    told = place.machine.run("loop", "--task", "u", "--timeout", "0.004", "--", "sleep", "9")
    assert told.code == 3
    shown = place.machine.json("task", "show", "u")
    assert "the last one took too long" in shown["escalation"]["reason"]
    assert f"The task waits for {shown['escalation']['to']}, to decide what to mend" in told.out


def test_a_loop_without_progress_whose_runs_ended_well_asks_nobody(place: Bench) -> None:
    code, done = place.loop("")
    assert (code, done["stopped"], done["escalation"]) == (3, "no_progress", None)
    assert place.machine.json("task", "show", "t")["status"] == "in_progress"


def test_a_loop_that_is_started_again_takes_its_question_back_and_can_complete(
    place: Bench,
) -> None:
    place.loop("exit 7")
    code, done = place.loop("x;x;x;--completed one --status complete")
    assert (code, done["stopped"]) == (0, "complete")
    shown = place.machine.json("task", "show", "t")
    assert (shown["status"], "escalation" in shown) == ("complete", False)
    assert "syncd loop" in shown["resolution"]["original_blocker"]


@pytest.mark.parametrize(
    "words",
    [("task", "resolve", "t", "--resolution", "mended"),
     ("recover", "t", "--takeover", "--agent", "zoe")],
)  # fmt: skip
def test_who_goes_on_otherwise_after_a_loop_gave_up_ends_its_question(
    place: Bench, words: tuple[str, ...]
) -> None:
    place.loop("exit 7")
    place.machine.ok(*words)
    shown = place.machine.json("task", "show", "t")
    assert (shown["status"], "escalation" in shown) == ("in_progress", False)
    place.machine.create("t", "--continue", "--agent", "zoe", "--status", "complete")
    assert place.machine.json("task", "show", "t")["status"] == "complete"


def test_what_somebody_else_asked_stays_when_a_loop_gives_up_or_begins(place: Bench) -> None:
    place.machine.create("t")
    asked = ("--to", "Eve", "--reason", "who pays?", "--decision", "pay or not")
    place.machine.ok("task", "escalate", "t", *asked)
    for _ in range(2):
        _, done = place.loop("exit 7")
        shown = place.machine.json("task", "show", "t")
        assert (shown["status"], shown["escalation"]["to"]) == ("escalated", "Eve")
        assert done["escalation"] == shown["escalation"]


# --- what is seen of it ---------------------------------------------------------------------------


class Terminal(io.TextIOWrapper):
    """One that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)

    def isatty(self) -> bool:
        return True

    def lines(self) -> list[str]:
        """What it shows: a line that is cleared begins anew."""
        self.seek(0)
        text = re.sub(r"\x1b\[\d*m", "", bytes(self.buffer.read()).decode())
        return [line.rpartition("\r\x1b[K")[2] for line in text.split("\n")]


def test_the_line_of_progress_stands_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("syncd.cli.render.width", lambda _: 40)
    with closing(_Screen()) as screen:
        screen.progress("iteration 1")
        screen.show(b"half a line")
        screen.progress("iteration 1, 0:01")
        assert terminal.lines() == ["half a line", "iteration 1, 0:01"]
        screen.progress("iteration 1, 0:02 " + "x" * 100)
        assert terminal.lines()[1] == ("iteration 1, 0:02 " + "x" * 100)[:39]
        screen.show(b"its end\nthe last one")
    assert terminal.lines() == ["half a line", "its end", "the last one", ""]
