"""Settings are whole and frozen, variables win over the file, and everything wrong is said at once."""

from collections.abc import Callable
from contextlib import closing
from fnmatch import fnmatchcase
from pathlib import Path

import httpx
import pytest
from pydantic import ValidationError

from collector.path_follower import make_client
from collector.shipping import Batch, GatewayClient
from lockstep.client.server import Server
from lockstep.config import DEFAULT_FILE, NOT_SETTINGS, Settings, list_settings, load_settings, read_secret
from lockstep.errors import BadInput, BadSettings, DestinationAway, ServerAway
from lockstep.sections import split_listen
from lockstep.state.database import open_control
from lockstep.store.engine import Embedded, parse_address
from tests.api.alerts.receivers import answer, make_certificate, receiving


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
    environment = dict.fromkeys(set(NOT_SETTINGS) - {"LOCKSTEP_CONFIG"}, "anything") | {"PATH": "/bin"}
    settings = load_settings(environment)
    assert settings == Settings()
    assert (settings.api.listen, settings.state_dir) == ("127.0.0.1:8642", Path("/var/lib/lockstep"))
    assert Path("/etc/lockstep/lockstep.toml") == DEFAULT_FILE


def test_file_is_the_given_one_or_the_variables_or_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = settings_file(tmp_path, 'log_level = "debug"\n[analyzer]\nwindow_s = 7\nsilence_s = 30.0\n')
    assert load_settings({"LOCKSTEP_CONFIG": str(file)}).analyzer.window_s == 7
    settings = load_settings({"LOCKSTEP_CONFIG": "/nowhere.toml", "LOCKSTEP_ANALYZER_WINDOW_S": "9"}, file)
    assert (settings.log_level, settings.analyzer.window_s, settings.analyzer.silence_s) == ("debug", 9, 30.0)
    monkeypatch.setattr("lockstep.config.DEFAULT_FILE", file)
    assert load_settings({}).analyzer.window_s == 7


def test_lists_and_tables_in_variables_are_json_and_switches_words_or_digits() -> None:
    nodes, days = '["http://a:8123", "http://b:8123"]', '{"transfers": 1, "steps": 0}'
    store = load_settings({"LOCKSTEP_STORE_NODES": nodes, "LOCKSTEP_STORE_RETENTION_DAYS": days}).store
    assert (store.nodes, store.retention_days) == (("http://a:8123", "http://b:8123"), {"transfers": 1, "steps": 0})
    for text, meant in {"true": True, "1": True, "false": False, "0": False}.items():
        assert load_settings({"LOCKSTEP_API_OPEN_READS": text}).api.open_reads is meant


def test_everything_wrong_in_file_and_variables_is_said_at_once(tmp_path: Path) -> None:
    text = 'colour = "red"\nlog_level = "loud"\n[api]\nlisten = "nowhere"\nport = 1\n[gateway]\nmax_rows = 0\n'
    environment = {"LOCKSTEP_ANALYZER_WINDOW_S": "soon", "LOCKSTEP_NO_SUCH": "1", "LOCKSTEP_API": "x"}
    environment["LOCKSTEP_LEASE_S"] = "0"
    assert complaints_about(environment, settings_file(tmp_path, text)) == [
        "LOCKSTEP_API: there is no such setting",
        "LOCKSTEP_NO_SUCH: there is no such setting",
        "log_level: string should match pattern '^(debug|info|warning|error)$'",
        "lease_s: input should be greater than 0",
        "api.listen: value error, 'nowhere' is not host:port",
        "api.port: there is no such setting",
        "gateway.max_rows: input should be greater than or equal to 1",
        "analyzer.window_s: input should be a valid integer, unable to parse string as an integer",
        "colour: there is no such setting",
    ]


def test_file_at_fault_is_named_and_the_variables_are_still_checked(tmp_path: Path) -> None:
    file = tmp_path / "lockstep.toml"
    for content, complaint in ((b"[api\n", "Expected ']'"), (b"\xff\xfe\x00", "'utf-8' codec can't decode")):
        file.write_bytes(content)
        about_file, about_variable = complaints_about({"LOCKSTEP_NO_SUCH": "1"}, file)
        assert about_file.startswith(f"{file}: {complaint}")
        assert about_variable == "LOCKSTEP_NO_SUCH: there is no such setting"
    for name in ("absent.toml", "."):
        (complaint,) = complaints_about({"LOCKSTEP_CONFIG": str(tmp_path / name)})
        assert str(tmp_path / name) in complaint


@pytest.mark.parametrize(
    ("environment", "text", "complaint"),
    [
        ({"LOCKSTEP_STORE_NODES": "[http://a:8123]"}, "", "store.nodes: input should be a valid tuple*"),
        ({"LOCKSTEP_API_LISTEN": "127.0.0.1:1"}, "api = 5\n", "api: input should be a valid dictionary*"),
        ({}, "[api.listen]\nhost = 1\n", "api.listen: input should be a valid string"),
        *(
            ({variable: text}, "", "*input should be a finite number")
            for variable in ("LOCKSTEP_LEASE_S", "LOCKSTEP_ANALYZER_SILENCE_S", "LOCKSTEP_GATEWAY_SEGMENT_S")
            for text in ("inf", "nan")
        ),
        (
            {"LOCKSTEP_STORE_RETENTION_DAYS": '{"transfers": -1}'},  # would delete everything
            "",
            "store.retention_days.transfers: input should be greater than or equal to 0",
        ),
    ],
)
def test_value_at_fault_is_refused(environment: dict[str, str], text: str, complaint: str, tmp_path: Path) -> None:
    (found,) = complaints_about(environment, settings_file(tmp_path, text))
    assert fnmatchcase(found, complaint)


LISTEN = {"127.0.0.1:8642": ("127.0.0.1", 8642), "head.cluster:0": ("head.cluster", 0), "[::1]:65535": ("::1", 65535)}
NO_LISTEN = "|8642|:8642|host:|host:http|host:65536|host:-1|::1|::1:80|[]:80|a:b:1|h:²"


def test_listen_is_host_and_port_or_refused() -> None:
    assert {text: split_listen(text) for text in LISTEN} == LISTEN
    for text in NO_LISTEN.split("|"):
        with pytest.raises(ValueError, match="is not host:port"):
            split_listen(text)


def test_settings_cannot_be_changed_and_have_a_meaning_and_variables_of_their_own() -> None:
    settings = load_settings({"LOCKSTEP_API_LISTEN": "[::1]:80"})
    assert settings.api.listen == "[::1]:80"
    for part, name in ((settings, "log_level"), (settings.api, "listen")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(part, name, "debug")
    variables = [setting.variable for setting in list_settings()]
    assert [setting.variable for setting in list_settings() if not setting.meaning] == []
    assert len(set(variables)) == len(variables)
    assert not set(variables) & set(NOT_SETTINGS)
    assert {"LOCKSTEP_STORE_URL", "LOCKSTEP_LOG_LEVEL"} <= set(variables)


def test_store_and_control_live_in_the_state_directory_unless_told_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = load_settings({"LOCKSTEP_STATE_DIR": "/data"})
    assert (settings.store_url, settings.control_url) == ("chdb:///data/store", "sqlite:////data/control.db")
    elsewhere = load_settings({"LOCKSTEP_STORE_URL": "http://db/x", "LOCKSTEP_CONTROL_URL": "postgresql://db/x"})
    assert (elsewhere.store_url, elsewhere.control_url) == ("http://db/x", "postgresql://db/x")
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
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert read_secret(tmp_path / "token", "the token") == "lks_abc"
    assert read_secret(None, "the token") == ""
    for name, why in (("absent", "No such file"), ("binary", "")):
        with pytest.raises(BadInput, match=rf"cannot read the token from {tmp_path}/{name}: .*{why}"):
            read_secret(tmp_path / name, "the token")


# --- clients of a server whose certificate the site's own authority signed: trusted where they are told, else not ---

RECEIPT = b'{"watermark": 7, "requests": []}'
Ask = Callable[[str, Path | None], object]


def as_reader(url: str, ca_file: Path | None) -> object:
    with Server(url, "lks_reader", ca_file=ca_file) as server:
        return server.send("POST", "/api/v1/anything", {})["watermark"]


def as_collector(url: str, ca_file: Path | None) -> object:
    with closing(GatewayClient(url, "lks_host", "h0", ca_file)) as client:
        return client.send(Batch("b1", 1, b"rows", rows=1)).watermark


def as_follower_of_paths(url: str, ca_file: Path | None) -> object:
    with make_client(url, "lks_host", ca_file) as client:
        return client.post("/").json()["watermark"]


@pytest.mark.parametrize("ask", [as_reader, as_collector, as_follower_of_paths])
def test_site_s_own_authority_is_believed_only_where_it_is_named_and_a_file_without_one_is(
    ask: Ask, tmp_path: Path
) -> None:
    certificate = make_certificate(tmp_path, "localhost")
    with receiving(answer(200, RECEIPT), certificate) as receiver:
        url = receiver.url.replace("127.0.0.1", "localhost")
        assert ask(url, certificate) == 7
        for wrong in ((url, None), (receiver.url, certificate)):  # the latter: another name than the certificate's
            with pytest.raises((ServerAway, DestinationAway, httpx.ConnectError), match="CERTIFICATE_VERIFY_FAILED"):
                ask(*wrong)
    assert len(receiver.got) == 1
    (tmp_path / "empty.pem").write_text("nothing\n")
    for file in (tmp_path / "empty.pem", tmp_path / "none.pem"):
        with pytest.raises(BadInput, match=rf"cannot read authorities from {file} \((LOCKSTEP_CA|collector\.ca)_"):
            ask("https://localhost:1", file)


@pytest.mark.parametrize("name", ["LOCKSTEP_CA_FILE", "SSL_CERT_FILE"])
def test_commands_take_the_authority_from_the_environment(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = make_certificate(tmp_path, "localhost")
    monkeypatch.setenv(name, str(certificate))
    with receiving(answer(200, RECEIPT), certificate) as receiver:
        assert as_reader(receiver.url.replace("127.0.0.1", "localhost"), None) == 7
