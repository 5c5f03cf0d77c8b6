"""Probes on a real fabric of namespaces: ports take their own spine, loss stays on its path, requests are obeyed."""

import os
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from collector.probes.packets import Arrival, Shot
from collector.probes.schedule import MeshOptions
from collector.probes.sockets import RawExchange, find_interface
from collector.sources.probes import ProbeOptions, ProbesSource
from collector.sources.source import Reading
from lockstep.arrow import schema_of
from lockstep.batches import DetailRequest
from lockstep.clock import ManualClock
from lockstep.errors import NotPresent
from lockstep.tables import TABLE_BY_NAME
from tests.builders import SECOND, T0
from tests.collector.sources.probe_fabric import ADDRESSES, TOPOLOGY, ProbeFabric, probe_fabric
from tests.waiting import LIMIT_S

PORTS = range(50_000, 50_016)
ON = ProbeOptions(is_on=True, mesh=MeshOptions(packets_per_s=2_000, is_on=False))

Row = dict[str, Any]


class Prober:
    """The source of h0, read inside its namespace."""

    def __init__(self, fabric: ProbeFabric, options: ProbeOptions = ON) -> None:
        self._fabric = fabric
        self.source = ProbesSource("h0", TOPOLOGY, ADDRESSES, options)
        self._detail_requests = 0

    def request(self, **details: Any) -> Mapping[str, list[Row]]:
        """Return the rows of one detail request, by table."""
        self._detail_requests += 1
        details = {"dst": "h1", "dst_nic": "eth0", "proto": "tcp", "sport": PORTS[0], "ports": len(PORTS)} | details
        requested = DetailRequest(
            id=str(self._detail_requests), host="h0", kind="probe", details=details, expires_ns=1 << 62
        )
        return self.read([requested])

    def read(self, requests: Sequence[DetailRequest] = ()) -> Mapping[str, list[Row]]:
        reading = self._fabric.run("h0", lambda: self.source.read(time.time_ns(), requests))
        for name, rows in reading.tables.items():
            assert rows.schema == schema_of(TABLE_BY_NAME[name])
        return {name: rows.to_pylist() for name, rows in reading.tables.items()}


@pytest.fixture
def prober(fabric: ProbeFabric) -> Iterator[Prober]:
    made = Prober(fabric)
    with closing(made.source):
        yield made


def spine_of(rows: Sequence[Row]) -> dict[int, str]:
    return {row["sport"]: row["hops"][1] for row in rows}


@pytest.mark.needs_root
def test_ports_spread_over_the_spines_and_each_keeps_its_own_for_its_protocol(prober: Prober) -> None:
    paths = {}
    for proto in ("tcp", "roce", "udp"):
        first, again = (prober.request(proto=proto)["probes"] for _ in range(2))
        paths[proto] = spine_of(first)
        assert paths[proto] == spine_of(again)
        assert set(paths[proto].values()) == {"spine0", "spine1"}
        assert {row["hops"][0] + row["hops"][2] for row in first} == {"leaf0leaf1"}
        assert all(0 < row["rtt_ns"] < 500_000_000 for row in first)
    assert paths["tcp"] != paths["roce"]


@pytest.mark.needs_root
def test_loss_on_one_spine_is_lost_for_its_ports_only_and_flows_that_were_moved_are_found_on_their_new_path() -> None:
    always = ProbeOptions(is_on=True, mesh=ON.mesh, fresh_s=0)
    with probe_fabric() as fabric:
        for proto in ("tcp", "roce"):  # to the host, and before the last switch
            with closing((prober := Prober(fabric)).source):
                paths = spine_of(prober.request(proto=proto)["probes"])
                fabric.swallow("spine1")
                lossy = prober.request(proto=proto)["probes"]
                fabric.heal("spine1")
                healed = prober.request(proto=proto)["probes"]
            lost = {row["sport"] for row in lossy if row["rtt_ns"] is None}
            assert lost == {sport for sport, spine in paths.items() if spine == "spine1"}
            assert spine_of(lossy) == paths
            assert [row for row in healed if row["rtt_ns"] is None] == []
        with closing((prober := Prober(fabric, always)).source):
            assert set(spine_of(prober.request()["probes"]).values()) == {"spine0", "spine1"}
            fabric.withdraw("spine0")
            moved = prober.request()
    assert set(spine_of(moved["probes"]).values()) == {"spine1"}
    assert {row["links"][1] for row in moved["paths"]} == {"leaf0--spine1"}


@pytest.mark.needs_root
def test_mesh_probes_the_other_host_and_a_request_beyond_the_topology_is_refused_with_an_event(
    fabric: ProbeFabric, prober: Prober
) -> None:
    options = ProbeOptions(is_on=True, mesh=MeshOptions(packets_per_s=200, ports=2, protos=("roce", "tcp")))
    meshed = Prober(fabric, options)
    with closing(meshed.source):
        rows = meshed.read()["probes"]
    assert sorted((row["proto"], row["dport"]) for row in rows) == [("roce", 4791)] * 2 + [("tcp", 9)] * 2
    assert all(row["rtt_ns"] is not None for row in rows)
    tables = prober.request(dst="192.0.2.7")
    assert list(tables) == ["events"]
    (event,) = tables["events"]
    assert (event["kind"], event["source"], event["severity"]) == ("probe_refused", "probes", "warning")
    assert "'192.0.2.7'" in event["message"]


@pytest.mark.needs_root
def test_host_behind_which_there_is_nobody_is_silent_and_a_nic_that_is_gone_or_elsewhere_gives_no_row(
    fabric: ProbeFabric, prober: Prober
) -> None:
    addresses = ADDRESSES | {"h1/eth0": "10.11.0.77"}
    source = ProbesSource("h0", TOPOLOGY, addresses, ProbeOptions(is_on=True, mesh=ON.mesh, timeout_s=0.1))
    with closing(source):
        tables = fabric.run("h0", partial(read_elsewhere, source, 1, count=3)).tables
    assert "probes" not in tables
    (event,) = tables["events"].to_pylist()
    assert (event["kind"], event["component"]) == ("probe_silent", "nic:h1/eth0")
    other = ProbesSource("h0", TOPOLOGY, ADDRESSES | {"h0/eth0": "10.10.0.99"}, ON)
    with closing(other), capture_logs() as lines:
        for number in range(2):
            assert fabric.run("spine0", partial(read_elsewhere, prober.source, number)).tables == {}
        assert fabric.run("h0", partial(read_elsewhere, other, 1)).tables == {}
    gone, elsewhere = [line for line in lines if line["log_level"] == "warning"]
    assert gone["problem"] == "packets cannot be sent"
    assert "Cannot assign requested address" in elsewhere["details"]


def read_elsewhere(source: ProbesSource, number: int, count: int = 1) -> Reading:
    """Read in whichever namespace this thread is."""
    details = {"dst": "h1", "dst_nic": "eth0", "proto": "tcp", "sport": 50_000, "count": count}
    requested = DetailRequest(id=str(number), host="h0", kind="probe", details=details, expires_ns=1 << 62)
    return source.read(time.time_ns(), [requested])


class Nowhere(RawExchange):
    """A fake of the sockets: nothing is ever sent."""

    def __init__(self) -> None:
        super().__init__(ManualClock())

    def check(self) -> None:
        pass

    def run(self, shots: Sequence[Shot]) -> list[Arrival | None]:
        return [Arrival(T0) for _ in shots]


def read_without_rights() -> None:
    os.setresuid(65534, 65534, 65534)
    ProbesSource("h0", TOPOLOGY, ADDRESSES, ON).read(0, ())


@pytest.mark.needs_root
def test_process_that_may_not_open_raw_sockets_is_reported_which_right_it_lacks() -> None:
    with (
        ProcessPoolExecutor(1, get_context("fork")) as pool,  # in no time, because it imports nothing
        pytest.raises(NotPresent, match=re.escape("probes need raw sockets (capability CAP_NET_RAW)")),
    ):
        pool.submit(read_without_rights).result(LIMIT_S)


def test_probes_that_are_off_or_lack_something_say_what_and_addresses_without_sense_are_left_out() -> None:
    lacking = {
        "probes are off": ProbesSource("h0", TOPOLOGY, ADDRESSES),
        "need a topology": ProbesSource("h0", None, ADDRESSES, ON),
        "none is set for h0": ProbesSource("h0", TOPOLOGY, {"h1/eth0": "10.0.0.1"}, ON, exchange=Nowhere()),
    }
    for reason, source in lacking.items():
        with pytest.raises(NotPresent, match=reason):
            source.read(T0, ())
    source = ProbesSource("h0", TOPOLOGY, ADDRESSES | {"h7/eth0": "10.0.0.7"}, ON, exchange=Nowhere())
    with capture_logs() as lines:
        assert source.read(T0, ()).watermark_ns == T0
        source.read(T0 + SECOND, ())
    reported = [line["details"] for line in lines if line["log_level"] == "warning"]
    assert reported == ["h7/eth0 is no NIC and no switch of the topology"]


def test_rdma_device_is_probed_through_its_interface(tmp_path: Path) -> None:
    (tmp_path / "sys/class/net/eth0").mkdir(parents=True)
    (tmp_path / "sys/class/infiniband/mlx5_0/device/net/ens1").mkdir(parents=True)
    names = [find_interface(nic, tmp_path) for nic in ("eth0", "mlx5_0", "mlx5_0:1", "gone")]
    assert names == ["eth0", "ens1", "ens1", "gone"]
