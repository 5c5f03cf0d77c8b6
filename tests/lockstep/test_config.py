"""Settings are whole and frozen, variables win over the file, and everything wrong is said at once."""

import string
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from lockstep.config import DEFAULT_FILE, NOT_SETTINGS, Settings, list_settings, load_settings, read_secret
from lockstep.errors import BadInput, BadSettings
from lockstep.sections import split_listen
from lockstep.state.database import open_control
from lockstep.store.engine import Embedded, parse_address


@pytest.fixture(autouse=True)
def _no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("lockstep.config.DEFAULT_FILE", tmp_path / "absent.toml")


def settings_file(folder: Path, text: str) -> Path:
    file = folder / "lockstep.toml"
    file.write_text(text, encoding="utf-8")
    return file


def complaints_about(environment: dict[str, str], file: Path | None = None) -> list[str]:
    with pytest.raises(BadSettings) as caught:
        load_settings(environment, file)
    return caught.value.complaints


def test_without_file_and_variables_everything_has_its_default() -> None:
    settings = load_settings({})
    assert settings == Settings()
    assert settings.api.listen == "127.0.0.1:8642"
    assert settings.state_dir == Path("/var/lib/lockstep")


def test_default_file_is_below_etc() -> None:
    assert Path("/etc/lockstep/lockstep.toml") == DEFAULT_FILE


def test_file_that_is_given_is_read(tmp_path: Path) -> None:
    file = settings_file(tmp_path, 'log_level = "debug"\n[analyzer]\nwindow_s = 7\n')
    settings = load_settings({}, file)
    assert (settings.log_level, settings.analyzer.window_s) == ("debug", 7)


def test_file_that_a_variable_names_is_read(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "[analyzer]\nwindow_s = 7\n")
    assert load_settings({"LOCKSTEP_CONFIG": str(file)}).analyzer.window_s == 7


def test_file_that_is_given_wins_over_the_one_that_a_variable_names(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "[analyzer]\nwindow_s = 7\n")
    assert load_settings({"LOCKSTEP_CONFIG": "/nowhere.toml"}, file).analyzer.window_s == 7


def test_default_file_is_read_where_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = settings_file(tmp_path, "[analyzer]\nwindow_s = 7\n")
    monkeypatch.setattr("lockstep.config.DEFAULT_FILE", file)
    assert load_settings({}).analyzer.window_s == 7


def test_variable_wins_over_the_file_and_leaves_the_rest_of_it(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "[analyzer]\nwindow_s = 7\nsilence_s = 30.0\n")
    settings = load_settings({"LOCKSTEP_ANALYZER_WINDOW_S": "9"}, file)
    assert (settings.analyzer.window_s, settings.analyzer.silence_s) == (9, 30.0)


def test_setting_without_a_section_has_a_variable_without_one() -> None:
    assert load_settings({"LOCKSTEP_STATE_DIR": "/data"}).state_dir == Path("/data")


def test_lists_and_tables_in_variables_are_json() -> None:
    settings = load_settings(
        {
            "LOCKSTEP_STORE_NODES": '["http://a:8123", "http://b:8123"]',
            "LOCKSTEP_STORE_RETENTION_DAYS": '{"transfers": 1, "steps": 0}',
        }
    )
    assert settings.store.nodes == ("http://a:8123", "http://b:8123")
    assert settings.store.retention_days == {"transfers": 1, "steps": 0}


def test_list_that_is_not_json_is_refused() -> None:
    (complaint,) = complaints_about({"LOCKSTEP_STORE_NODES": "[http://a:8123]"})
    assert complaint.startswith("store.nodes: input should be a valid tuple")


@pytest.mark.parametrize(("text", "meant"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_switches_in_variables_are_words_or_digits(text: str, meant: bool) -> None:
    assert load_settings({"LOCKSTEP_API_OPEN_READS": text}).api.open_reads is meant


def test_variables_of_others_and_ours_that_are_no_settings_are_left_alone() -> None:
    environment = dict.fromkeys(set(NOT_SETTINGS) - {"LOCKSTEP_CONFIG"}, "anything") | {"PATH": "/bin"}
    assert load_settings(environment) == Settings()


def test_everything_wrong_in_file_and_variables_is_said_at_once(tmp_path: Path) -> None:
    text = 'colour = "red"\nlog_level = "loud"\n[api]\nlisten = "nowhere"\nport = 1\n[gateway]\nmax_rows = 0\n'
    environment = {"LOCKSTEP_ANALYZER_WINDOW_S": "soon", "LOCKSTEP_NO_SUCH": "1", "LOCKSTEP_API": "x"}
    assert complaints_about(environment, settings_file(tmp_path, text)) == [
        "LOCKSTEP_API: there is no such setting",
        "LOCKSTEP_NO_SUCH: there is no such setting",
        "log_level: string should match pattern '^(debug|info|warning|error)$'",
        "api.listen: value error, 'nowhere' is not host:port",
        "api.port: there is no such setting",
        "gateway.max_rows: input should be greater than or equal to 1",
        "analyzer.window_s: input should be a valid integer, unable to parse string as an integer",
        "colour: there is no such setting",
    ]


def test_complaints_stand_one_a_line_in_the_message() -> None:
    with pytest.raises(BadSettings) as caught:
        load_settings({"LOCKSTEP_NO_SUCH": "1", "LOCKSTEP_LEASE_S": "0"})
    assert str(caught.value).splitlines() == [
        "these settings cannot be used:",
        "  - LOCKSTEP_NO_SUCH: there is no such setting",
        "  - lease_s: input should be greater than 0",
    ]


def test_file_that_is_not_toml_is_named_and_the_variables_are_still_checked(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "[api\n")
    about_file, about_variable = complaints_about({"LOCKSTEP_NO_SUCH": "1"}, file)
    assert about_file.startswith(f"{file}: Expected ']'")
    assert about_variable == "LOCKSTEP_NO_SUCH: there is no such setting"


def test_file_that_is_not_text_is_named(tmp_path: Path) -> None:
    file = tmp_path / "lockstep.toml"
    file.write_bytes(b"\xff\xfe\x00")
    (complaint,) = complaints_about({}, file)
    assert complaint.startswith(f"{file}: 'utf-8' codec can't decode")


@pytest.mark.parametrize("name", ["absent.toml", "."])
def test_file_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    (complaint,) = complaints_about({"LOCKSTEP_CONFIG": str(tmp_path / name)})
    assert str(tmp_path / name) in complaint


def test_plain_value_where_a_section_belongs_is_refused_also_with_a_variable_of_that_section(tmp_path: Path) -> None:
    file = settings_file(tmp_path, "api = 5\n")
    (complaint,) = complaints_about({"LOCKSTEP_API_LISTEN": "127.0.0.1:1"}, file)
    assert complaint.startswith("api: input should be a valid dictionary")


def test_table_below_a_key_is_refused_as_a_value(tmp_path: Path) -> None:
    (complaint,) = complaints_about({}, settings_file(tmp_path, "[api.listen]\nhost = 1\n"))
    assert complaint == "api.listen: input should be a valid string"


@pytest.mark.parametrize(
    "variable", ["LOCKSTEP_LEASE_S", "LOCKSTEP_ANALYZER_SILENCE_S", "LOCKSTEP_GATEWAY_SEGMENT_S"]
)
@pytest.mark.parametrize("text", ["inf", "nan"])
def test_length_of_time_without_end_is_refused(variable: str, text: str) -> None:
    (complaint,) = complaints_about({variable: text})
    assert complaint.endswith("input should be a finite number")


def test_negative_retention_which_would_delete_everything_is_refused() -> None:
    (complaint,) = complaints_about({"LOCKSTEP_STORE_RETENTION_DAYS": '{"transfers": -1}'})
    assert complaint == "store.retention_days.transfers: input should be greater than or equal to 0"


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("127.0.0.1:8642", "127.0.0.1", 8642),
        ("head.cluster:0", "head.cluster", 0),
        ("[::1]:65535", "::1", 65535),
    ],
)
def test_listen_is_host_and_port(text: str, host: str, port: int) -> None:
    assert split_listen(text) == (host, port)


@pytest.mark.parametrize(
    "text",
    ["", "8642", ":8642", "host:", "host:http", "host:65536", "host:-1", "::1", "::1:80", "[]:80", "a:b:1", "h:²"],
)
def test_listen_that_is_not_host_and_port_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not host:port"):
        split_listen(text)


@given(st.text(string.printable))
def test_listen_is_split_or_refused_whatever_the_text(text: str) -> None:
    try:
        host, port = split_listen(text)
    except ValueError:
        return
    assert text in (f"{host}:{text.rpartition(':')[2]}", f"[{host}]:{text.rpartition(':')[2]}")
    assert 0 <= port <= 65535


def test_listen_in_brackets_survives_being_a_variable() -> None:
    assert load_settings({"LOCKSTEP_API_LISTEN": "[::1]:80"}).api.listen == "[::1]:80"


def test_settings_cannot_be_changed() -> None:
    settings = load_settings({})
    with pytest.raises(ValidationError, match="frozen"):
        settings.log_level = "debug"  # type: ignore[misc]  # the mistake that is refused
    with pytest.raises(ValidationError, match="frozen"):
        settings.api.listen = "127.0.0.1:1"  # type: ignore[misc]  # the mistake that is refused


def test_store_and_control_live_in_the_state_directory_unless_told_otherwise() -> None:
    settings = load_settings({"LOCKSTEP_STATE_DIR": "/data"})
    assert (settings.store_url, settings.control_url) == ("chdb:///data/store", "sqlite:////data/control.db")
    told = load_settings({"LOCKSTEP_STORE_URL": "http://db/x", "LOCKSTEP_CONTROL_URL": "postgresql://db/x"})
    assert (told.store_url, told.control_url) == ("http://db/x", "postgresql://db/x")


def test_relative_state_directory_is_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings({"LOCKSTEP_STATE_DIR": "state"}).store_url == f"chdb://{tmp_path}/state/store"


@pytest.mark.parametrize("name", ["50%25", "a#b", "a b", "a%41"])
def test_state_directory_may_have_any_name(tmp_path: Path, name: str) -> None:
    settings = load_settings({"LOCKSTEP_STATE_DIR": str(tmp_path / name)})
    assert parse_address(settings.store_url) == Embedded(tmp_path / name / "store")
    with open_control(settings.control_url):
        assert (tmp_path / name / "control.db").exists()


def test_secret_is_what_its_file_holds_without_the_newline(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("lks_abc\n")
    assert read_secret(tmp_path / "token", "the token") == "lks_abc"


def test_secret_without_a_file_is_empty() -> None:
    assert read_secret(None, "the token") == ""


def test_secret_that_cannot_be_read_says_what_for_and_where(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=rf"cannot read the token from {tmp_path}/absent: .*No such file"):
        read_secret(tmp_path / "absent", "the token")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(BadInput, match="cannot read the token"):
        read_secret(tmp_path / "binary", "the token")


@pytest.mark.parametrize("setting", list_settings(), ids=lambda setting: setting.variable)
def test_setting_says_what_it_means(setting: object) -> None:
    assert getattr(setting, "meaning", "")


def test_variables_are_unique_and_none_is_both_setting_and_not() -> None:
    variables = [setting.variable for setting in list_settings()]
    assert len(set(variables)) == len(variables)
    assert not set(variables) & set(NOT_SETTINGS)
    assert "LOCKSTEP_STORE_URL" in variables
    assert "LOCKSTEP_LOG_LEVEL" in variables
