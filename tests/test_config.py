from __future__ import annotations

import sys
from pathlib import Path

import pytest

from syncd import config
from syncd.config import Setting
from syncd.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


# --- values -------------------------------------------------------------------------------------


def test_without_a_file_every_setting_has_its_default(file: Path) -> None:
    settings = config.load(file)
    assert dict(settings) == {setting.name: setting.default for setting in config.SETTINGS}
    assert {value.source for value in settings.explained()} == {"default"}
    assert len(settings) == len(config.SETTINGS) >= 4


def test_the_file_overrides_the_default_and_the_environment_the_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[backup]\nkeep = 3\n[limits]\nbody_bytes = 5000\n")
    monkeypatch.setenv("SYNCD_BACKUP_KEEP", "4")
    settings = config.load(file)
    sources = {value.setting.name: value.source for value in settings.explained()}
    assert (settings["backup.keep"], sources["backup.keep"]) == (4, "SYNCD_BACKUP_KEEP")
    assert (settings["limits.body_bytes"], sources["limits.body_bytes"]) == (5000, str(file))
    assert (settings["limits.rendered_bytes"], sources["limits.rendered_bytes"]) == (
        2048,
        "default",
    )


def test_a_dotted_key_is_the_same_as_one_in_a_table(file: Path) -> None:
    file.write_text("backup.keep = 7\n")
    assert config.load(file)["backup.keep"] == 7


def test_a_whole_number_is_taken_where_a_fraction_is_allowed(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[store]\nbusy_seconds = 5\n")
    value = config.load(file)["store.busy_seconds"]
    assert (value, type(value)) == (5.0, float)
    monkeypatch.setenv("SYNCD_STORE_BUSY_SECONDS", "0.25")
    assert config.load(file)["store.busy_seconds"] == 0.25


@pytest.mark.parametrize(
    ("text", "value"), [("true", True), ("1", True), ("FALSE", False), ("0", False)]
)
def test_a_switch_is_true_or_false_in_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str, value: bool
) -> None:
    file.write_text(f"redaction.enabled = {str(not value).lower()}\n")
    assert config.load(file)["redaction.enabled"] is not value
    monkeypatch.setenv("SYNCD_REDACTION_ENABLED", text)
    assert config.load(file)["redaction.enabled"] is value


def test_a_list_has_one_text_on_each_line_in_the_environment(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write_text("[redaction]\npatterns = ['a,b', \"c\"]\n")
    assert config.load(file)["redaction.patterns"] == ["a,b", "c"]
    monkeypatch.setenv("SYNCD_REDACTION_PATTERNS", "x, y\n\n[z] \n")
    assert config.load(file)["redaction.patterns"] == ["x, y", "[z] "]
    monkeypatch.setenv("SYNCD_REDACTION_PATTERNS", "")
    assert config.load(file)["redaction.patterns"] == []


def test_every_setting_has_a_help_text_and_a_variable_of_its_own() -> None:
    assert all(setting.help for setting in config.SETTINGS)
    variables = {setting.variable for setting in config.SETTINGS}
    assert len(variables) == len(config.SETTINGS)
    assert "SYNCD_LIMITS_BODY_BYTES" in variables


# --- what is refused ----------------------------------------------------------------------------


def refused(file: Path, text: str) -> ConfigError:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        config.load(file)
    assert "\n" not in caught.value.message
    assert caught.value.exit_code == 2
    return caught.value


def test_an_unknown_key_is_named_with_its_line_and_the_known_ones(file: Path) -> None:
    error = refused(file, "# mine\n\n[backup]\nkeep = 3\nkeeep = 4\n")
    assert error.message == f"{file}, line 5: no such setting: backup.keeep"
    assert "backup.keep" in error.remedy


def test_an_unknown_key_is_found_in_its_own_table(file: Path) -> None:
    error = refused(file, "[backup]\nkeep = 3\n\n[store]\nkeep = 4\n")
    assert error.message == f"{file}, line 5: no such setting: store.keep"


def test_an_unknown_dotted_key_is_named_with_its_line(file: Path) -> None:
    error = refused(file, "backup.keep = 3\ncloud.nonsense = 4\n")
    assert error.message == f"{file}, line 2: no such setting: cloud.nonsense"


def test_a_table_that_nobody_knows_is_named_even_when_empty(file: Path) -> None:
    assert "nonsense" in refused(file, "[nonsense]\n").message


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('keep = "many"', "backup.keep must be a whole number, not 'many'"),
        ("keep = 1.5", "backup.keep must be a whole number, not 1.5"),
        ("keep = true", "backup.keep must be a whole number, not True"),
        ("keep = [1]", "backup.keep must be a whole number, not [1]"),
        ("keep = 0", "backup.keep must be above zero"),
        ("keep = -1", "backup.keep must be above zero"),
    ],
)
def test_an_ill_typed_value_is_refused_with_its_line(file: Path, line: str, message: str) -> None:
    assert refused(file, f"[backup]\n{line}\n").message == f"{file}, line 2: {message}"


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("enabled = 1", "redaction.enabled must be true or false, not 1"),
        ('enabled = "yes"', "redaction.enabled must be true or false, not 'yes'"),
        ('patterns = "a"', "redaction.patterns must be a list of texts, not 'a'"),
        ('patterns = ["a", 1]', "redaction.patterns must be a list of texts, not ['a', 1]"),
    ],
)
def test_an_ill_typed_switch_or_list_is_refused(file: Path, line: str, message: str) -> None:
    error = refused(file, f"[redaction]\n{line}\n")
    assert error.message == f"{file}, line 2: {message}"
    assert error.remedy in (
        "For example: redaction.enabled = false",
        'For example: redaction.patterns = ["one", "another"]',
    )


@pytest.mark.parametrize("setting", config.SETTINGS, ids=lambda setting: setting.name)
def test_the_example_of_a_remedy_is_a_line_of_the_file(file: Path, setting: Setting) -> None:
    error = refused(file, f"{setting.name} = 1979-05-27")
    assert error.remedy.startswith("For example: ")
    file.write_text(error.remedy.removeprefix("For example: "))
    assert setting.name in config.load(file)


def test_a_word_that_is_no_switch_is_refused_by_the_variables_name(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_REDACTION_ENABLED", "perhaps")
    with pytest.raises(ConfigError, match=r"^SYNCD_REDACTION_ENABLED: redaction\.enabled must be "):
        config.load(file)


@pytest.mark.parametrize(
    "value",
    [
        "nan",
        "inf",
        "-inf",
        "0.0",
        '"30"',
        "false",
    ],
)
def test_a_waiting_time_must_be_a_number_of_seconds(file: Path, value: str) -> None:
    error = refused(file, f"[store]\nbusy_seconds = {value}\n")
    assert error.message.startswith(f"{file}, line 2: store.busy_seconds must be ")
    assert "at most" not in error.message or value == "inf"


@pytest.mark.parametrize("text", ["", "many", "1.5", "0", "-3", "true"])
def test_an_ill_typed_variable_is_refused_by_its_name(
    file: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("SYNCD_BACKUP_KEEP", text)
    with pytest.raises(ConfigError, match=r"^SYNCD_BACKUP_KEEP: backup\.keep must be "):
        config.load(file)


@pytest.mark.parametrize("text", ["[backup", "keep = ", "a = 1\na = 2", "\ufeffa = 1"])
def test_a_file_that_is_no_toml_is_refused_by_its_name(file: Path, text: str) -> None:
    assert refused(file, text).message.startswith(f"{file}: ")


def test_a_file_that_is_no_text_is_refused_by_its_name(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.toml: "):
        config.load(file)


# --- the home -----------------------------------------------------------------------------------


def test_the_home_is_the_flags_then_the_environments_then_the_platforms(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SYNCD_HOME", str(tmp_path / "environment"))
    assert config.home(tmp_path / "flag") == tmp_path / "flag"
    assert config.home() == tmp_path / "environment"
    monkeypatch.delenv("SYNCD_HOME")
    assert config.home() == config.default_home()
    monkeypatch.setenv("SYNCD_HOME", "")
    assert config.home() == config.default_home()


def test_a_home_is_absolute_and_may_begin_with_a_tilde(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SYNCD_HOME", "~/mine")
    assert config.home() == tmp_path / "mine"
    assert config.home(Path("~/flag")) == tmp_path / "flag"
    monkeypatch.setenv("SYNCD_HOME", "relative")
    assert config.home() == tmp_path / "relative"
    assert config.home(Path("here")) == tmp_path / "here"


@pytest.mark.skipif(sys.platform == "darwin", reason="XDG is for other platforms")
def test_the_default_home_is_in_the_users_data_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.default_home() == tmp_path / ".local" / "share" / "syncd"
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert config.default_home() == tmp_path / "data" / "syncd"
    monkeypatch.setenv("XDG_DATA_HOME", "")
    assert config.default_home() == tmp_path / ".local" / "share" / "syncd"


@pytest.mark.skipif(sys.platform == "darwin", reason="XDG is for other platforms")
def test_a_data_directory_that_is_not_absolute_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the XDG specification asks: it would move with the working directory."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert config.default_home() == tmp_path / ".local" / "share" / "syncd"


@pytest.mark.skipif(sys.platform != "darwin", reason="the place on macOS")
def test_the_default_home_on_macos_is_in_application_support(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert config.default_home() == tmp_path / "Library" / "Application Support" / "syncd"
