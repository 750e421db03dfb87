"""`syncd hook HOST`: one event of a host, from standard input.

It runs at every use of a tool, so each import stands where it is needed. Whatever goes wrong, the
host sees an exit code of 0, and `syncd status` tells of it.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from syncd.hooks import events

if TYPE_CHECKING:
    from syncd.hooks.events import Event
    from syncd.hooks.journal import Seal
    from syncd.hooks.place import Place
    from syncd.node import Node

_MOST_BYTES = 32_000_000
# Before the host loses patience: it waits for 10.
_SECONDS = 9
_BUSY_SECONDS, _LAST_BUSY_SECONDS = 0.4, 1.0
_BEAT_MS = 60_000


class Call(NamedTuple):
    """How it was called. `original` is the status line that the user had before."""

    host: str
    home: Path
    status_line: bool = False
    original: str | None = None


def called(arguments: Sequence[str]) -> Call | None:
    """The command line, if it is one that a host was given; else click reads it."""
    from syncd.config import home

    words = [*arguments]
    named = None
    if words[:1] == ["--home"] and words[1:2] not in ([], [""]):
        named, words = Path(words[1]), words[2:]
    if words[:1] != ["hook"] or words[1:2] == [] or words[1] not in events.HOSTS:
        return None
    host, rest = words[1], words[2:]
    if not rest:
        return Call(host, home(named))
    if rest[0] != "--status-line" or host != events.CLAUDE_CODE:
        return None
    if rest[1:] == []:
        return Call(host, home(named), status_line=True)
    if rest[1] != "--" or len(rest) < 3:
        return None
    return Call(host, home(named), True, shell_command(rest[2:]))


def shell_command(words: Sequence[str]) -> str:
    """What a shell is given: one word is a command line already."""
    if len(words) == 1:
        return words[0]
    import shlex

    return shlex.join(words)


def run(call: Call) -> int:
    """0, whatever happens."""
    given = b""
    try:
        given = _given()
        if call.status_line:
            from syncd.hooks import statusline

            statusline.noted(call.home, call.host, given)
        else:
            os.umask(0o077)
            _answer(handled(call, given))
    except BaseException as error:  # noqa: BLE001 (nothing may reach the host)
        _told(call, given, error)
    if not call.status_line:
        return 0
    from syncd.hooks import statusline

    return statusline.shown(given, call.original)


def _given() -> bytes:
    """The event. Nobody types one."""
    if sys.stdin is None or sys.stdin.isatty():
        _mutter("syncd hook takes an event from standard input: your agent's host calls it.")
        return b""
    with _within(_SECONDS):
        data = sys.stdin.buffer.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise ValueError(f"an event of more than {_MOST_BYTES:,} bytes was not read")
    return data


class _TooSlowError(Exception):
    pass


@contextmanager
def _within(seconds: int) -> Iterator[None]:
    import signal

    def stop(*_: object) -> None:
        raise _TooSlowError(f"not done within {seconds} s, and the host need not wait longer")

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def _answer(document: Mapping[str, Any] | None) -> None:
    if document:
        import json

        sys.stdout.write(json.dumps(document) + "\n")
        sys.stdout.flush()


def handled(call: Call, given: bytes) -> Mapping[str, Any] | None:
    """What to answer, if anything."""
    event = events.read(call.host, _document(given))
    if event is None or (event.kind == events.BEFORE and not event.said):
        return None
    with _within(_SECONDS), closing(Hook(call.home)) as hook:
        words = hook.takes(call.host, event)
    return _said(call.host, event, words) if words else None


def _document(given: bytes) -> Any:
    """Nothing at all is what a user pipes in by mistake, and no event."""
    if not given.strip():
        return None
    import json

    try:
        return json.loads(given)
    except RecursionError:
        raise ValueError("the event is nested too deeply") from None
    except ValueError as error:
        raise ValueError(f"the event is not JSON: {str(error)[:80]}") from None


def _said(host: str, event: Event, words: str) -> Mapping[str, Any]:
    if host == events.OPENCODE:
        return {"context": words}
    return {"hookSpecificOutput": {"hookEventName": event.name, "additionalContext": words}}


# --- when it fails --------------------------------------------------------------------------------


def _told(call: Call, given: bytes, error: BaseException) -> None:
    """In the log if that can be written, else to stderr, which hosts keep to themselves."""
    if isinstance(error, BrokenPipeError):  # the host has gone: Python must not try at exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    import re
    import time

    from syncd import mishaps
    from syncd.errors import SyncdError

    said = error.message if isinstance(error, SyncdError) else str(error) or repr(error)
    name = re.search(rb'"(?:hook_event_name|type)"\s*:\s*"([\w.]{1,60})"', given[:1_000_000])
    where = f"{call.host} {name[1].decode() if name else 'event'}"
    try:
        from syncd.redaction import Redactor

        problem = Redactor().quoted(" ".join(said.split()))
        mishaps.record(call.home, mishaps.Mishap(int(time.time() * 1000), where, problem))
    except Exception as another:  # noqa: BLE001 (then there is nowhere left to tell it)
        _mutter(f"syncd hook: {type(error).__name__}, and it cannot be logged: {another}")


def _mutter(line: str) -> None:
    with suppress(OSError, ValueError):  # nobody listens
        sys.stderr.write(f"{line[:500]}\n")


# --- what happens at an event ---------------------------------------------------------------------


class Hook:
    """One event, in one home."""

    def __init__(self, home: Path) -> None:
        from syncd import config

        self._home = home
        self._settings = config.load(home / "config.toml")
        self._node: Node | None = None

    def node(self, busy_seconds: float = _BUSY_SECONDS) -> Node:
        if self._node is None:
            from syncd.node import Node

            self._node = Node(self._home, busy_seconds)
        return self._node

    def seal(self) -> Seal | None:
        if self._settings["encryption"] == "none":
            return None  # without a node, which takes time to load
        from syncd.hooks.journal import seal_of

        return seal_of(self.node())

    def close(self) -> None:
        if self._node is not None:
            self._node.close()

    def takes(self, host: str, event: Event) -> str:
        """Record it, do what is due, and say what the agent should know."""
        from syncd.hooks import place as places

        place = places.of(self._home, host, event, self.seal())
        if place is None or not (place.task or place.journal.exists()):
            return ""  # to be left alone; or no repository, and no task that it could belong to
        return self._at(place)

    def _at(self, place: Place) -> str:
        kind = place.event.kind
        if kind == events.START:
            return self._start(place)
        self._note(place)
        if kind in (events.COMPACT, events.STOP, events.SUBAGENT, events.END):
            return self._stop(place)
        if kind == events.BEFORE:
            self._save(place, "in_progress", "periodic")
            return ""
        self._beat(place)
        return self._advice(place)

    def _note(self, place: Place, **more: Any) -> None:
        import time

        from syncd.hooks.place import inside

        said = {**place.event.said, **more}
        if "files" in said:
            said["files"] = inside(place, said["files"])
        kept = {key: said.pop(key) for key in ("transcript",) if key in said}
        line = {"t": int(time.time() * 1000), "k": place.task, **self._clean(said), **kept}
        if not place.journal.file.parent.is_dir():
            self._make_room(place)
        place.journal.append({name: v for name, v in line.items() if v}, place.head())

    def _clean(self, said: dict[str, Any]) -> dict[str, Any]:
        """Without secrets, before anything is written. A word like `Edit` holds none."""
        if not said.keys() - {"tool", "subagent", "baseline"}:
            return said
        from syncd import redaction

        document: dict[str, Any] = (
            redaction.of(self._settings)
            .cleaned(said, redaction.Shape(names=frozenset(said)))
            .document
        )
        return document

    def _make_room(self, place: Place) -> None:
        """First use makes the home, as for any command."""
        if not (self._home / "run").is_dir():
            _ = self.node().store
        place.journal.file.parent.mkdir(mode=0o700, exist_ok=True)

    # --- the start and the end ------------------------------------------------------------------

    def _start(self, place: Place) -> str:
        from syncd.errors import StoreBusyError
        from syncd.hooks import leftovers, opening, transcript

        known: dict[str, Any] = {"source": place.event.source}
        if not place.journal.exists() and place.event.source == "resume":
            # What was used before is in the checkpoints of then.
            known["baseline"] = transcript.whole(place.event.transcript).total
        self._note(place, **known)
        with suppress(StoreBusyError):  # a session later will do
            leftovers.of_task(self.node(), place.task, place.journal, self.seal())
        words = opening.told(self.node(), place) if place.task else ""
        self._alive(place)
        return words

    def _stop(self, place: Place) -> str:
        kind = place.event.kind
        if kind == events.END:
            self.node(_LAST_BUSY_SECONDS)
        reason = "context_limit" if kind == events.COMPACT else "periodic"
        rests = kind in (events.STOP, events.END) and not os.environ.get("SYNCD_ITERATION")
        self._save(place, "waiting" if rests else "in_progress", reason)
        if kind == events.END:
            self._end(place)
        elif kind == events.COMPACT and place.event.source == "compact":
            from syncd.hooks import opening

            return opening.told(self.node(), place)
        return ""

    def _save(self, place: Place, status: str, reason: str) -> None:
        from syncd.errors import StoreBusyError
        from syncd.hooks import advice
        from syncd.hooks.record import Moment, save

        cost = place.journal.gauge().get("cost")
        moment = Moment(place.task, place.folder, status, reason, advice.context(place),
                        cost if isinstance(cost, int | float) else None)  # fmt: skip
        try:
            save(self.node(), place.journal, moment, ended=place.event.kind == events.END)
        except StoreBusyError:
            return  # the journal has it all: the next event makes a checkpoint of it

    def _end(self, place: Place) -> None:
        from syncd import presence

        presence.ended(self.node(), place.agent, place.task)

    # --- while it works -------------------------------------------------------------------------

    def _beat(self, place: Place) -> None:
        """A sign of life now and then; after a long time without one, a checkpoint."""
        import time

        now, marks = int(time.time() * 1000), place.journal.marks()
        if 0 <= now - _number(marks.get("beat")) < _BEAT_MS:
            return
        place.journal.mark(beat=now)  # first, so that of many at once one does it
        self._alive(place)
        minutes = self._settings["liveness.heartbeat_minutes"]
        since = _number(marks.get("saved")) or _number(marks.get("began"))
        if not since:
            place.journal.mark(began=now)
        elif now - since > minutes * 60_000:
            self._save(place, "in_progress", "periodic")

    def _alive(self, place: Place) -> None:
        from syncd import presence
        from syncd.errors import StoreBusyError

        if not place.task:
            return
        try:
            presence.heartbeat(
                self.node(), place.agent, place.task, place.agent_type, place.event.session
            )
        except StoreBusyError:
            place.journal.mark(beat=0)  # the next event gives it

    def _advice(self, place: Place) -> str:
        from syncd.hooks import advice

        found = advice.rung(place, advice.context(place), self._settings)
        told = [advice.words(place, found)] if found else []
        if found and found.level in advice.SAFETY:
            self._save(place, "in_progress", "context_limit")
        if place.event.kind == events.FAILED:
            told += self._errors(place)
        return "\n".join(told) if place.event.name in _HEARD else ""

    def _errors(self, place: Place) -> list[str]:
        """Once in a row of errors."""
        from syncd.hooks.session import folded
        from syncd.triggers import Circumstances, action, thresholds
        from syncd.vocabulary import HandoffTrigger

        session = folded(place.journal.lines(), place.task)
        if session.errors != thresholds(self._settings).errors + 1:
            return []
        known = Circumstances(errors=session.errors, last_error=session.last_error)
        return [f"syncd: {action(HandoffTrigger.ERROR_THRESHOLD, known).note}"]


# Events whose answer reaches the agent.
_HEARD = ("UserPromptSubmit", "PostToolUse", "PostToolUseFailure")


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0
