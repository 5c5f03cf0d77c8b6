"""The site's file of targets: what it may say, and everything wrong about it at once."""

from pathlib import Path

import pytest

from collector.sources.fabric_targets import MOST_TARGETS, load_profiles, load_targets
from lockstep.errors import BadSettings


def write(folder: Path, text: str) -> Path:
    path = folder / "fabric.toml"
    path.write_text(text, encoding="utf-8")
    return path


def complaints(folder: Path, text: str) -> list[str]:
    with pytest.raises(BadSettings) as refused:
        load_targets(write(folder, text))
    return refused.value.complaints


def test_target_comes_with_its_profile_and_usual_settings(tmp_path: Path) -> None:
    ((target, profile),) = load_targets(
        write(tmp_path, '[[target]]\nurl = "http://ufm:9100/metrics"\nprofile = "ufm_telemetry"\n')
    )
    assert (target.every_s, target.timeout_s, target.authorization_file) == (15.0, 10.0, None)
    assert profile == load_profiles()["ufm_telemetry"]


def test_profile_of_the_site_replaces_ours_of_the_same_name(tmp_path: Path) -> None:
    text = """
    [[target]]
    url = "http://a"
    profile = "sonic_exporter"
    [[profile]]
    name = "sonic_exporter"
    switch = ["node"]
    port = ["device"]
    metric = [{ metric = "a", column = "rx_bytes" }]
    """
    ((_, profile),) = load_targets(write(tmp_path, text))
    assert profile.switch == ("node",)


def test_all_that_is_wrong_with_targets_is_said_at_once(tmp_path: Path) -> None:
    text = """
    [[target]]
    url = "ftp://a"
    profile = "snmp_if_mib"
    [[target]]
    url = "http://b"
    profile = "snmp_if_mib"
    switch_names = [{ pattern = "(", to = "" }]
    colour = "red"
    """
    first, second, third = complaints(tmp_path, text)
    assert first.startswith("target 1: url: ")
    assert second.startswith("target 2: switch_names.0: ")
    assert "'('" in second
    assert third.startswith("target 2: colour: ")


@pytest.mark.parametrize("url", ["http://user:secret@ufm/metrics", "https://", "ufm:9100", "http://a b"])
def test_address_that_is_none_or_holds_a_password_is_refused(tmp_path: Path, url: str) -> None:
    (complaint,) = complaints(tmp_path, f'[[target]]\nurl = "{url}"\nprofile = "ufm_telemetry"\n')
    assert complaint.startswith("target 1: url: ")


def test_name_made_of_a_group_that_is_not_there_is_refused(tmp_path: Path) -> None:
    text = '[[target]]\nurl = "http://b"\nprofile = "ufm_telemetry"\nport_names = [{pattern = "a", to = "\\\\1"}]\n'
    (complaint,) = complaints(tmp_path, text)
    assert "invalid group reference" in complaint


def test_profile_that_nobody_knows_and_switch_that_nobody_names_are_refused(tmp_path: Path) -> None:
    text = '[[target]]\nurl = "http://a"\nprofile = "tea"\n[[target]]\nurl = "http://b"\nprofile = "snmp_if_mib"\n'
    first, second = complaints(tmp_path, text)
    assert first.startswith("http://a: there is no profile 'tea'; known: snmp_if_mib, ")
    assert second == "http://b: profile snmp_if_mib does not tell the switch, so the target must"


def test_state_without_the_values_that_mean_up_is_refused(tmp_path: Path) -> None:
    text = '[[profile]]\nname = "p"\nport = ["p"]\nmetric = [{ metric = "a", column = "up" }]\n'
    complaint, *_ = complaints(tmp_path, text)
    assert complaint.startswith("profile 1: metric.0: ")
    assert "belong to column up" in complaint


@pytest.mark.parametrize("text", ["target = 3", "[target]\nurl = 'http://a'", "[[targets]]", "garbage"])
def test_file_that_is_no_list_of_targets_is_refused(tmp_path: Path, text: str) -> None:
    assert str(tmp_path) in complaints(tmp_path, text)[0]


def test_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="No such file"):
        load_targets(tmp_path / "no.toml")


def test_more_targets_than_threads_are_refused(tmp_path: Path) -> None:
    one = '[[target]]\nurl = "http://a"\nprofile = "ufm_telemetry"\n'
    assert complaints(tmp_path, one * (MOST_TARGETS + 1)) == ["257 targets are more than 256"]


def test_every_profile_of_ours_fills_what_a_row_must_have() -> None:
    for profile in load_profiles().values():
        columns = {rule.column for rule in profile.metric} | ({"up"} if profile.linked_only else set())
        assert columns >= {"up", "rx_bytes", "tx_bytes"}, profile.name
