"""Samples of exporters become ports: each profile on the form that its exporter serves, and the site's own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.samples import Sample

from collector.sources.fabric_ports import MOST_PORTS, Exposition, PortScan, parse, rows_of_scan, scan_ports
from collector.sources.fabric_targets import Profile, Renaming, Target, load_profiles
from lockstep.arrow import conform, rows_of
from lockstep.errors import BadInput
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


def test_if_table_of_snmp_exporter() -> None:
    row = only_row(SNMP, "snmp_if_mib", switch="leaf1")
    assert (row.host, row.ts_ns, row.switch, row.port) == ("head", T0, "leaf1", "Eth1/1")
    assert (row.up, row.speed_mbps, row.rx_bytes, row.tx_bytes) == (True, 400_000, 1_500_000_000_000, 200)
    assert (row.errors, row.drops, row.pause_rx, row.fec_uncorrected) == (9, 3, None, None)


def test_openconfig_paths_of_gnmic_behind_any_prefix() -> None:
    row = only_row(GNMIC, "gnmic_openconfig", switch_names=[{"pattern": r"(.+):\d+", "to": r"\1"}])
    assert (row.switch, row.port, row.up) == ("10.0.0.7", "e1", True)
    assert (row.rx_bytes, row.tx_bytes, row.pause_rx, row.speed_mbps) == (10, 20, 7, None)


@pytest.mark.parametrize("texts", [("UP", "DOWN"), ("DOWN", "UP")])
def test_port_whose_state_has_two_series_is_down(texts: tuple[str, str]) -> None:
    """gnmic keeps the series of the former text for a while."""
    state = next(line for line in GNMIC.splitlines() if "oper_status=" in line)
    text = GNMIC.replace(state, "\n".join(state.replace("UP", word) for word in texts))
    assert only_row(text, "gnmic_openconfig").up is False


def test_sonic_exporter_reports_errors_drops_and_pauses_by_label() -> None:
    row = only_row(SONIC, "sonic_exporter", switch="leaf2")
    assert (row.speed_mbps, row.rx_bytes, row.tx_bytes) == (400_000, 100, 200)
    assert (row.errors, row.drops, row.pause_rx, row.pause_tx) == (11, 2, 3, 30)


def test_pauses_of_all_priorities_are_added() -> None:
    row = only_row(CUMULUS, "cumulus_otlp")
    assert (row.switch, row.port, row.speed_mbps, row.pause_rx) == ("leaf3", "swp1", 800_000, 543)


def test_data_of_ufm_is_in_words_of_four_bytes() -> None:
    row = only_row(UFM, "ufm_telemetry", switch_names=[{"pattern": "2c90300f172a0", "to": "leaf1"}])
    assert (row.switch, row.port, row.up, row.tx_bytes, row.rx_bytes) == ("leaf1", "2", True, 288, 144)
    assert row.fec_uncorrected == 9


def test_switch_is_named_as_another_metric_says() -> None:
    row = only_row(INFINIBAND, "infiniband_exporter")
    assert (row.switch, row.port, row.speed_mbps) == ("leaf-a", "35", 100_000)
    assert (row.rx_bytes, row.extra) == (178762341961629, {"symbol_error": 6})


def test_state_holds_against_the_rule_that_served_ports_are_up() -> None:
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


def test_empty_name_leaves_the_port_out() -> None:
    names = [{"pattern": "leaf.*", "to": "leaf"}, {"pattern": ".*", "to": ""}]
    found = scan(UFM, "ufm_telemetry", switch_names=names)
    assert (found.ports, found.nameless) == ({}, 0)


def test_port_that_lacks_what_a_row_must_have_gives_none_and_is_reported() -> None:
    found = scan('ifHCInOctets{ifName="a"} 1\n', "snmp_if_mib", switch="s")
    assert rows_of_scan(found, "head", T0) == {}
    assert found.complaint(0) == "1 ports give no row, because nothing tells up, tx_bytes"


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e300"])
def test_value_that_is_no_count_counts_nothing(value: str) -> None:
    text = SNMP.replace("1.5e+12", value)
    assert "nothing tells rx_bytes" in scan(text, "snmp_if_mib", switch="s").complaint(0)


def test_answer_about_something_else_is_reported() -> None:
    found = scan("node_load1 3\n", "snmp_if_mib", switch="s")
    assert found.complaint(0) == "it serves nothing that the profile knows"


@pytest.mark.parametrize("label", ['{ifName=""}', "{}", '{ifName="' + "x" * 201 + '"}'])
def test_sample_that_names_no_port_is_reported(label: str) -> None:
    found = scan(SNMP + f"ifHCInOctets{label} 1\n", "snmp_if_mib", switch="s")
    assert (len(found.ports), found.complaint(1)) == (1, "samples name no switch or port")


def test_ports_are_bounded() -> None:
    samples = (Sample("ifHCInOctets_total", {"ifName": str(n)}, 1.0) for n in range(MOST_PORTS + 5))
    found = scan_ports(samples, PROFILES["snmp_if_mib"], target_of("snmp_if_mib", switch="s"))
    assert (len(found.ports), found.too_many) == (MOST_PORTS, True)
    assert "more than 20000 ports" in found.complaint(0)


def test_first_renaming_that_fits_the_whole_name_decides() -> None:
    names = (Renaming(pattern="a", to="short"), Renaming(pattern="a(.)", to=r"\1"))
    row = only_row(SNMP.replace("Eth1/1", "ab"), "snmp_if_mib", switch="s", port_names=names)
    assert row.port == "b"


@given(st.text(max_size=300), st.booleans())
def test_whatever_an_exporter_writes_gives_ports_or_a_sentence(text: str, is_openmetrics: bool) -> None:
    whole = SNMP + text
    try:
        found = scan_ports(
            parse(Exposition(whole, is_openmetrics)), PROFILES["snmp_if_mib"], target_of("snmp_if_mib", switch="s")
        )
    except BadInput:
        return
    rows_of(TABLE_BY_NAME["fabric_counters"], list(rows_of_scan(found, "head", T0).values()))
