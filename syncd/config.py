"""Settings: declared once, taken from flag, environment, config.toml or default, in this order."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from syncd.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from tomlkit import TOMLDocument


class Setting(NamedTuple):
    """One setting. Its type is that of its default. A secret is never shown."""

    name: str
    default: Any
    help: str
    secret: bool = False
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return "SYNCD_" + self.name.upper().replace(".", "_")


SETTINGS = (
    Setting("limits.body_bytes", 1_000_000, "largest checkpoint body that is accepted"),
    Setting("limits.rendered_bytes", 2_048, "a checkpoint whose prompt is longer gets a warning"),
    Setting("store.busy_seconds", 30.0, "how long a write waits for another program's lock"),
    Setting("backup.keep", 10, "how many backups are kept"),
    Setting("backup.hours", 24.0, "how often the daemon makes a backup, if something has changed"),
    Setting("daemon.poll_seconds", 60.0, "how often the daemon looks for news nobody announced"),
    Setting("daemon.retry_seconds", 300.0, "the longest pause before the replica is tried again"),
    Setting("daemon.grace_seconds", 5.0, "how long the daemon may still send when it is stopped"),
    Setting("disk.low_mb", 200, "with less free, nothing is fetched or backed up"),
    Setting("disk.quota_mb", 10_000, "the same if the database and its backups are larger"),
    Setting(
        "encryption",
        "none",
        "how bodies are sealed: none, at_rest or end_to_end",
        choices=("none", "at_rest", "end_to_end"),
    ),
    Setting("keys.passphrase_file", "", "a file with the passphrase of the data keys, if any"),
    Setting("redaction.enabled", True, "whether secrets are taken out before anything is written"),
    Setting("redaction.entropy", False, "whether words that look random count as secrets too"),
    Setting("redaction.patterns", [], "your own regular expressions for what is a secret"),
    Setting("redaction.allow", [], "regular expressions for what is none"),
    Setting("loop.pause_seconds", 60.0, "how long `syncd loop` waits after a rate limit, at first"),
    Setting("handoff.context_percent", 70.0, "context used above which to hand off soon"),
    Setting("handoff.checkpoint_percent", 75.0, "context used above which all must be written"),
    Setting("handoff.insist_percent", 80.0, "context used above which to hand off at once"),
    Setting("handoff.stop_percent", 90.0, "context used above which to stop"),
    Setting("handoff.errors", 3, "errors in a row above which to hand off"),
    Setting("handoff.budget_percent", 80.0, "share of a task's tokens above which to hand off"),
    Setting("handoff.timeout_minutes", 60.0, "minutes of work above which to hand off"),
    Setting("handoff.confirm_seconds", 5.0, "how long a claim waits for the replica's word"),
    Setting("liveness.heartbeat_minutes", 15.0, "how often an agent gives a sign of life"),
    Setting("liveness.warning_minutes", 30.0, "minutes of silence above which it is warned"),
    Setting("liveness.crashed_minutes", 60.0, "above which it is presumed to have crashed"),
    Setting("recovery.attempts", 3, "recoveries in a row without a new checkpoint before a pause"),
    Setting("recovery.pause_minutes", 30.0, "how long that pause is"),
    Setting("watch.paths", [], "files and directories from which the daemon takes checkpoints"),
    Setting("cloud.dsn", "", "the replica; `syncd login` sets it, empty means local only", True),
    Setting("cloud.tls", "verify-full", "how a replica on another machine is protected"),
    Setting("admin.dsn", "", "an administrator's login, for `cloud migrate` and `admin`", True),
)
_LARGEST = 1_000_000_000
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def default(name: str) -> Any:
    return _BY_NAME[name].default


class Value(NamedTuple):
    setting: Setting
    value: Any
    source: str


class Settings(Mapping[str, Any]):
    """The values in force, and where each came from."""

    def __init__(self, values: Mapping[str, Value]) -> None:
        self._values = values

    def __getitem__(self, name: str) -> Any:
        return self._values[name].value

    def __iter__(self) -> Any:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def explained(self) -> list[Value]:
        return list(self._values.values())


def default_home() -> Path:
    """The platform's place for a user's application data."""
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Application Support" / "syncd"
    data = Path(os.environ.get("XDG_DATA_HOME", ""))
    # The XDG specification: a path that is not absolute is to be ignored.
    return (data if data.is_absolute() else Path.home() / ".local" / "share") / "syncd"


def named_home(text: str) -> Path:
    """A home that was named. As a path, nothing is the current directory, which nobody meant."""
    if not text:
        raise UsageError(
            "an empty path is no home",
            "Name a directory after --home; without --home, SYNCD_HOME or your own home counts.",
        )
    return Path(text)


def home(flag: Path | None = None) -> Path:
    if flag is not None:
        return flag.expanduser().absolute()
    named = os.environ.get("SYNCD_HOME")
    return Path(named).expanduser().absolute() if named else default_home()


def load(file: Path) -> Settings:
    values = {s.name: Value(s, s.default, "default") for s in SETTINGS}
    for name, raw in _file_values(file).items():
        values[name] = Value(_BY_NAME[name], raw, str(file))
    for setting in SETTINGS:
        if (text := os.environ.get(setting.variable)) is not None:
            value = _from_text(setting, text)
            values[setting.name] = Value(setting, value, setting.variable)
    return Settings(values)


def _file_values(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    import tomllib

    try:
        text = file.read_text(encoding="utf-8")
        document = tomllib.loads(text)
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"{file}: {error}", f"Correct {file}.") from None
    found: dict[str, Any] = {}
    document.pop("agents", None)  # tables of the user's own names: `commands`
    for name, value in _flat(document):
        place = f"{file}, line {_line_of(text, name)}"
        if name not in _BY_NAME:
            names = ", ".join(_BY_NAME)
            raise ConfigError(f"{place}: no such setting: {name}", f"There are: {names}.")
        found[name] = _checked(_BY_NAME[name], value, place)
    return found


def _flat(document: Mapping[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    pairs: list[tuple[str, Any]] = []
    for key, value in document.items():
        name = f"{prefix}{key}"
        pairs += (
            _flat(value, name + ".") if isinstance(value, Mapping) and value else [(name, value)]
        )
    return pairs


def _line_of(text: str, name: str) -> int:
    """The line on which a setting, or the table that it is named after, stands."""
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        word = line.split("#")[0].strip()
        if word.startswith("["):
            table = word.strip("[] ")
            if table == name:
                return number
        key = word.split("=")[0].strip()
        if "=" in word and (f"{table}.{key}" if table else key) == name:
            return number
    return 1


_EXPECTED = {
    int: "a whole number",
    float: "a number",
    str: "a text",
    bool: "true or false",
    list: "a list of texts",
}


def _from_text(setting: Setting, text: str) -> Any:
    """In the environment, a list has one text on each line."""
    kind = type(setting.default)
    value: Any = text
    if kind is bool:
        value = {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)
    elif kind is list:
        value = [line for line in text.splitlines() if line]
    else:
        with suppress(ValueError):
            value = kind(text)
    return _checked(setting, value, setting.variable)


def _checked(setting: Setting, value: Any, place: str) -> Any:
    kind = type(setting.default)
    if kind is float and type(value) is int:
        value = float(value)
    if type(value) is not kind or not _possible(value):
        shown = "this" if setting.secret else repr(value)
        example = {bool: "false", list: '["one", "another"]'}.get(kind, repr(setting.default))
        raise ConfigError(
            f"{place}: {setting.name} must be {_EXPECTED[kind]}, not {shown}",
            f"For example: {setting.name} = {example}",
        )
    if setting.choices and value not in setting.choices:
        raise ConfigError(
            f"{place}: {setting.name} must be one of {', '.join(setting.choices)}, not {value!r}",
            f"For example: {setting.name} = {setting.default!r}",
        )
    if kind in (int, float) and not 0 < value <= _LARGEST:
        limit = "above zero" if value <= 0 else f"at most {_LARGEST:,}"
        raise ConfigError(f"{place}: {setting.name} must be {limit}", "Correct the value.")
    return value


def _possible(value: Any) -> bool:
    if isinstance(value, list):
        return all(type(item) is str for item in value)
    return not (isinstance(value, float) and isnan(value))


def commands(file: Path) -> dict[str, list[str]]:
    """What to run for each type of agent: `[agents.qa] command = ["codex", "exec", "{prompt}"]`."""
    if not file.exists():
        return {}
    import shlex
    import tomllib

    found = {}
    for name, table in tomllib.loads(file.read_text(encoding="utf-8")).get("agents", {}).items():
        command = table.get("command") if isinstance(table, dict) else None
        words = shlex.split(command) if isinstance(command, str) else command
        if not isinstance(words, list) or not words or not all(isinstance(w, str) for w in words):
            raise ConfigError(
                f"{file}: [agents.{name}] needs a command, as a text or a list of texts",
                f'For example: [agents.{name}] command = "my-agent --prompt {{prompt_file}}"',
            )
        found[name] = words
    return found


# --- changing the file ------------------------------------------------------------------------


def document(file: Path) -> TOMLDocument:
    """The user's file as it is, comments and all."""
    import tomlkit

    return tomlkit.parse(file.read_text(encoding="utf-8") if file.exists() else "")


def put(file: Path, name: str, value: str | None) -> None:
    """Change one setting, or take it out, and leave the file as it is otherwise."""
    import tomlkit

    changed = document(file)
    *tables, key = name.split(".")
    place: Any = changed
    for table in tables:
        place = place.setdefault(table, tomlkit.table())
    if value is not None:
        place[key] = value
    elif key in place:
        del place[key]
    for table in tables:
        if not changed[table]:
            del changed[table]
    text = tomlkit.dumps(changed)
    if not text and not file.exists():
        return
    draft = file.with_name(f"{file.name}.{os.getpid()}.new")
    draft.write_text(text, encoding="utf-8")
    draft.chmod(0o600)
    draft.replace(file)
