"""Settings are shown without secrets, and a receiver can be tried out by who may."""

from pathlib import Path

from api.dashboard.settings import HIDDEN, show_settings
from lockstep.config import load_settings
from tests.api.build import Api
from tests.api.dashboard.build import browse, send


def test_secrets_are_named_and_not_shown(tmp_path: Path) -> None:
    environment = {
        "LOCKSTEP_CONTROL_URL": "postgresql://ada:hunter2@db/lockstep",
        "LOCKSTEP_PLANNER_CONTROLLER_OPTIONS": '{"password": "hunter2"}',
        "LOCKSTEP_API_LISTEN": "127.0.0.1:9",
    }
    file = tmp_path / "lockstep.toml"
    file.write_text("")
    shown = {(each.section, each.key): each for each in show_settings(load_settings(environment, file))}
    assert shown["control", "url"].value == "postgresql://…@db/lockstep"
    assert shown["planner", "controller_options"].value == HIDDEN
    assert (shown["api", "listen"].value, shown["api", "listen"].is_default) == ("127.0.0.1:9", False)
    assert "hunter2" not in "".join(each.value for each in shown.values())


def test_every_setting_is_on_the_page_with_its_meaning(api: Api) -> None:
    text = browse(api, "/settings").text
    assert "gpu_hour_price" in text
    assert "no receiver of alerts is set" in text
    assert text.count("<tr data-row>") == len(show_settings(api.parts.settings))


def test_unknown_receiver_cannot_be_tried(api: Api) -> None:
    answer = send(api, "/settings/receivers/pager/test", api.make_token("admin"))
    assert (answer.status_code, "pager" in answer.text) == (404, True)
    assert send(api, "/settings/receivers/pager/test", api.make_token("act")).status_code == 403
