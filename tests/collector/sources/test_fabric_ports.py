"""Samples of exporters become ports: each profile on the form that its exporter serves, and the site's own."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from collector.sources.fabric_ports import Exposition, PortScan, parse, rows_of_scan, scan_ports
from collector.sources.fabric_targets import MOST_TARGETS, Profile, Renaming, Target, load_profiles, load_targets
from lockstep.arrow import conform, rows_of
from lockstep.errors import BadInput, BadSettings
from lockstep.records import FabricCounter
from lockstep.tables import TABLE_BY_NAME
from tests.builders import T0

PROFILES = load_profiles()

SNMP = """
# HELP ifHCInOctets The total number of octets received on the interface - 1.3.6.1.2.1.31.1.1.1.6
# TYPE ifHCInOctets counter
ifHCInOctets{ifAlias="to h0",ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1"} 1.5e+12
# TYPE ifHCOutOctets counter
ifHCOutOctets{ifAlias="to h0",ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1"} 200
# TYPE ifHighSpeed gauge
ifHighSpeed{ifAlias="to h0",ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1"} 400000
# TYPE ifInDiscards counter
ifInDiscards{ifAlias="to h0",ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1"} 3
# TYPE ifInErrors counter
ifInErrors{ifAlias="to h0",ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1"} 4
# TYPE ifOutErrors counter
ifOutErrors{ifAlias="to h0",ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1"} 5
# TYPE ifOperStatus gauge
ifOperStatus{ifAlias="to h0",ifDescr="Ethernet1/1",ifIndex="1",ifName="Eth1/1"} 1
"""
GNMIC = """
# TYPE gnmic_interfaces_interface_state_counters_in_octets untyped
gnmic_interfaces_interface_state_counters_in_octets{interface_name="e1",source="10.0.0.7:5"} 10
gnmic_interfaces_interface_state_counters_out_octets{interface_name="e1",source="10.0.0.7:5"} 20
gnmic_interfaces_interface_state_oper_status{interface_name="e1",oper_status="UP",source="10.0.0.7:5"} 1
gnmic_interfaces_interface_ethernet_state_counters_in_mac_pause_frames{interface_name="e1",source="10.0.0.7:5"} 7
gnmic_interfaces_interface_subinterfaces_subinterface_state_counters_in_octets{interface_name="e1"} 999
"""
SONIC = """
sonic_interface_operational_status{device="Ethernet0"} 1
sonic_interface_speed_bytes{device="Ethernet0"} 5e+10
sonic_interface_receive_bytes_total{device="Ethernet0"} 100
sonic_interface_transmit_bytes_total{device="Ethernet0"} 200
sonic_interface_receive_errs_total{device="Ethernet0",type="error"} 1
sonic_interface_receive_errs_total{device="Ethernet0",type="discard"} 2
sonic_interface_receive_errs_total{device="Ethernet0",type="pause"} 3
sonic_interface_transmit_errs_total{device="Ethernet0",type="error"} 10
sonic_interface_transmit_errs_total{device="Ethernet0",type="pause"} 30
"""
CUMULUS = """
nvswitch_interface_oper_state{interface="swp1",net_host_name="leaf3"} 1
nvswitch_interface_oper_aggregate_speed{interface="swp1",net_host_name="leaf3"} 8e+11
nvswitch_interface_if_in_octets{interface="swp1",net_host_name="leaf3"} 1
nvswitch_interface_if_out_octets{interface="swp1",net_host_name="leaf3"} 2
nvswitch_interface_dot3_in_pause_frames{interface="swp1",net_host_name="leaf3"} 3
nvswitch_interface_sp_rx_pause{interface="swp1",net_host_name="leaf3",switch_priority="3"} 40
nvswitch_interface_sp_rx_pause{interface="swp1",net_host_name="leaf3",switch_priority="4"} 500
"""
UFM = """
# TYPE PortXmitDataExtended counter
# TYPE PortRcvDataExtended counter
PortXmitDataExtended{source="0x0002c90300f172a0", node_guid="2c90300f172a0", port_num="2"} 72 1628683905941
PortRcvDataExtended{source="0x0002c90300f172a0", node_guid="2c90300f172a0", port_num="2"} 36 1628683905941
plr_rcv_uncorrectable_code{source="0x0002c90300f172a0", node_guid="2c90300f172a0", port_num="2"} 9 1628683905941
"""
INFINIBAND = """
infiniband_switch_info{guid="0x506b4b03005c2740",lid="2052",switch="leaf-a"} 1
infiniband_switch_port_receive_data_bytes_total{guid="0x506b4b03005c2740",port="35"} 178762341961629
infiniband_switch_port_transmit_data_bytes_total{guid="0x506b4b03005c2740",port="35"} 1.3e+13
infiniband_switch_port_rate_bytes_per_second{guid="0x506b4b03005c2740",port="35"} 1.25e+10
infiniband_switch_port_symbol_error_total{guid="0x506b4b03005c2740",port="35"} 6
"""


def target_of(profile: str, **settings: object) -> Target:
    return Target.model_validate({"url": "http://x", "profile": profile} | settings)


def scan(text: str, profile: str | Profile, **settings: object) -> PortScan:
    whole = PROFILES[profile] if isinstance(profile, str) else profile
    return scan_ports(parse(Exposition(text, is_openmetrics=False)), whole, target_of(whole.name, **settings))


def only_row(text: str, profile: str | Profile, **settings: object) -> FabricCounter:
    found = scan(text, profile, **settings)
    (row,) = rows_of_scan(found, "head", T0).values()
    conform(TABLE_BY_NAME["fabric_counters"], rows_of(TABLE_BY_NAME["fabric_counters"], [row]))
    assert found.complaint(rows=1) == ""
    return row


WITHOUT_PORT = {"switch_names": [{"pattern": r"(.+):\d+", "to": r"\1"}]}
NAMED = {"switch_names": [{"pattern": "2c90300f172a0", "to": "leaf1"}]}


@pytest.mark.parametrize(
    ("text", "profile", "settings", "expected"),
    [
        (SNMP, "snmp_if_mib", {"switch": "leaf1"}, ("leaf1", "Eth1/1", True, 400_000, 1_500_000_000_000, 200)),
        (GNMIC, "gnmic_openconfig", WITHOUT_PORT, ("10.0.0.7", "e1", True, None, 10, 20)),  # behind any prefix
        (SONIC, "sonic_exporter", {"switch": "leaf2"}, ("leaf2", "Ethernet0", True, 400_000, 100, 200)),
        (CUMULUS, "cumulus_otlp", {}, ("leaf3", "swp1", True, 800_000, 1, 2)),
        (UFM, "ufm_telemetry", NAMED, ("leaf1", "2", True, None, 144, 288)),  # in words of four bytes
        (INFINIBAND, "infiniband_exporter", {}, ("leaf-a", "35", True, 100_000, 178762341961629, 13 * 10**12)),
    ],
)
def test_port_is_read_as_its_exporter_serves_it(
    text: str, profile: str, settings: dict[str, object], expected: tuple[object, ...]
) -> None:
    row = only_row(text, profile, **settings)
    assert (row.switch, row.port, row.up, row.speed_mbps, row.rx_bytes, row.tx_bytes) == expected
    assert (row.host, row.ts_ns) == ("head", T0)


def test_errors_drops_and_pauses_are_added_by_label_and_priority() -> None:
    snmp, sonic = only_row(SNMP, "snmp_if_mib", switch="s"), only_row(SONIC, "sonic_exporter", switch="s")
    assert (snmp.errors, snmp.drops, snmp.pause_rx, snmp.fec_uncorrected) == (9, 3, None, None)
    assert (sonic.errors, sonic.drops, sonic.pause_rx, sonic.pause_tx) == (11, 2, 3, 30)
    assert only_row(GNMIC, "gnmic_openconfig").pause_rx == 7
    assert only_row(CUMULUS, "cumulus_otlp").pause_rx == 543
    assert only_row(UFM, "ufm_telemetry").fec_uncorrected == 9
    assert only_row(INFINIBAND, "infiniband_exporter").extra == {"symbol_error": 6}


def test_port_whose_state_has_two_series_or_is_served_as_down_is_down() -> None:
    state = next(line for line in GNMIC.splitlines() if "oper_status=" in line)
    for texts in (("UP", "DOWN"), ("DOWN", "UP")):  # gnmic keeps the series of the former text for a while
        text = GNMIC.replace(state, "\n".join(state.replace("UP", word) for word in texts))
        assert only_row(text, "gnmic_openconfig").up is False
    assert only_row(SNMP.rstrip()[:-1] + "2\n", "snmp_if_mib", switch="s").up is False
    down = INFINIBAND + 'infiniband_switch_port_state{guid="0x506b4b03005c2740",port="35"} 0\n'
    row = only_row(down, "infiniband_exporter")
    assert (row.up, row.speed_mbps) == (False, None)


def test_site_may_name_its_own_metrics() -> None:
    rules = [
        {"metric": "my_link", "column": "up", "up_label": "state", "up_texts": ["ok"]},
        {"metric": "my_in", "column": "rx_bytes", "scale": 1024},
        {"metric": "my_out", "column": "tx_bytes"},
        {"metric": "my_fec", "column": "fec_uncorrected"},
        {"metric": "my_other", "column": "extra"},
    ]
    mine = Profile.model_validate({"name": "mine", "switch": ["sw"], "port": ["p"], "metric": rules})
    labels = 'sw="s",p="1"'
    text = f'my_link{{{labels},state="ok"}} 1\nmy_in{{{labels}}} 2\nmy_out{{{labels}}} 3\n'
    row = only_row(text + f"my_fec{{{labels}}} 4\nmy_other{{{labels}}} 5\n", mine)
    assert (row.up, row.rx_bytes, row.tx_bytes, row.fec_uncorrected, row.extra) == (True, 2048, 3, 4, {"my_other": 5})


def test_first_renaming_that_fits_the_whole_name_decides_and_an_empty_name_leaves_out() -> None:
    names = (Renaming(pattern="a", to="short"), Renaming(pattern="a(.)", to=r"\1"))
    row = only_row(SNMP.replace("Eth1/1", "ab"), "snmp_if_mib", switch="s", port_names=names)
    assert row.port == "b"
    empty = [{"pattern": "leaf.*", "to": "leaf"}, {"pattern": ".*", "to": ""}]
    found = scan(UFM, "ufm_telemetry", switch_names=empty)
    assert (found.ports, found.nameless) == ({}, 0)


LACKING = "1 ports give no row, because nothing says "


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ('ifHCInOctets{ifName="a"} 1\n', f"{LACKING}up, tx_bytes"),
        *((SNMP.replace("1.5e+12", value), f"{LACKING}rx_bytes") for value in ("NaN", "+Inf", "-1", "1e300")),
        ("node_load1 3\n", "it serves nothing that the profile knows"),
    ],
)
def test_port_that_lacks_what_a_row_must_have_gives_none_and_is_reported(text: str, complaint: str) -> None:
    found = scan(text, "snmp_if_mib", switch="s")
    assert rows_of_scan(found, "head", T0) == {}
    assert found.complaint(0) == complaint


def test_sample_that_names_no_port_is_reported_and_ports_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    for label in ('{ifName=""}', "{}", '{ifName="' + "x" * 201 + '"}'):
        found = scan(SNMP + f"ifHCInOctets{label} 1\n", "snmp_if_mib", switch="s")
        assert (len(found.ports), found.complaint(1)) == (1, "samples name no switch or port")
    monkeypatch.setattr("collector.sources.fabric_ports.MOST_PORTS", 50)
    samples = (Sample("ifHCInOctets_total", {"ifName": str(n)}, 1.0) for n in range(55))
    found = scan_ports(samples, PROFILES["snmp_if_mib"], target_of("snmp_if_mib", switch="s"))
    assert (len(found.ports), found.too_many) == (50, True)
    assert "more than 50 ports" in found.complaint(0)


@given(st.text(max_size=300), st.booleans())
def test_whatever_an_exporter_writes_gives_ports_or_a_sentence(text: str, is_openmetrics: bool) -> None:
    whole = SNMP + text
    try:
        samples = parse(Exposition(whole, is_openmetrics))
        found = scan_ports(samples, PROFILES["snmp_if_mib"], target_of("snmp_if_mib", switch="s"))
    except BadInput:
        return
    rows_of(TABLE_BY_NAME["fabric_counters"], list(rows_of_scan(found, "head", T0).values()))


def target(url: str = "http://a", profile: str = "ufm_telemetry", more: str = "") -> str:
    return f'[[target]]\nurl = "{url}"\nprofile = "{profile}"\n{more}\n'


def complaints(folder: Path, text: str) -> list[str]:
    path = folder / "fabric.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadSettings) as refused:
        load_targets(path)
    return refused.value.complaints


OWN_PROFILE = """[[profile]]
name = "sonic_exporter"
switch = ["node"]
port = ["device"]
metric = [{ metric = "a", column = "rx_bytes" }]
"""


def test_target_comes_with_its_profile_and_that_of_the_site_replaces_ours(tmp_path: Path) -> None:
    path = tmp_path / "fabric.toml"
    path.write_text(target() + target(profile="sonic_exporter") + OWN_PROFILE)
    (usual, ours), (_, own) = load_targets(path)
    assert (usual.every_s, usual.timeout_s, usual.authorization_file) == (15.0, 10.0, None)
    assert ours == PROFILES["ufm_telemetry"]
    assert own.switch == ("node",)
    for profile in PROFILES.values():
        columns = {rule.column for rule in profile.metric} | ({"up"} if profile.linked_only else set())
        assert columns >= {"up", "rx_bytes", "tx_bytes"}, profile.name


UNNAMED = "http://a: profile snmp_if_mib does not name the switch, so the target must"
NO_UP = '[[profile]]\nname = "p"\nport = ["p"]\nmetric = [{ metric = "a", column = "up" }]\n'


def test_file_that_makes_no_sense_is_refused_with_all_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(BadSettings, match="No such file"):
        load_targets(tmp_path / "no.toml")
    odd = 'switch_names = [{ pattern = "(", to = "" }]\ncolour = "red"'
    first, second, third = complaints(tmp_path, target("ftp://a") + target(more=odd))
    assert first.startswith("target 1: url: ")
    assert second.startswith("target 2: switch_names.0: ")
    assert "'('" in second
    assert third.startswith("target 2: colour: ")
    for text, beginning, words in (
        *((target(url), "target 1: url: ", "") for url in ("http://me:secret@b", "https://", "ufm:1", "http://a b")),
        (target(more='port_names = [{pattern = "a", to = "\\\\1"}]'), "target 1: ", "invalid group reference"),
        (target(profile="tea"), "http://a: there is no profile 'tea'; known: snmp_if_mib, ", ""),
        (target(profile="snmp_if_mib"), UNNAMED, ""),
        (NO_UP, "profile 1: metric.0: ", "belong to column up"),
        *((text, "", "fabric.toml") for text in ("target = 3", "[target]\nurl = 'a'", "[[targets]]", "garbage")),
        (target() * (MOST_TARGETS + 1), "257 targets are more than 256", ""),
    ):
        complaint, *_ = complaints(tmp_path, text)
        assert complaint.startswith(beginning)
        assert words in complaint
