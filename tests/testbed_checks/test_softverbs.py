"""Verbs programs between namespaces over the stand-in: contents, keys, ports, counters, and what loss is told as."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from collector.sources.rdma import RdmaSource
from lockstep.errors import NotPresent
from lockstep.fabrics import FabricOptions, leaf_spine
from lockstep.host_paths import HostPaths, PathChoice, read_reports, write_queue_pairs
from tests.testbed.fabric.building import build_fabric
from tests.testbed.fabric.fabric import Fabric
from tests.testbed.fabric.management import find_interface
from tests.testbed.fabric.plan import Port
from tests.testbed.paths.shim import VERBS_LIBRARY, ShimFiles
from tests.testbed.paths.shim import build as build_shim
from tests.testbed.softverbs.stand_in import StandIn, build_stand_in, captured_roce, default_label, port_of_label
from tests.waiting import LIMIT_S, eventually

pytestmark = [pytest.mark.slow, pytest.mark.needs_root]
TOPOLOGY = leaf_spine(hosts=2, nics_per_host=1, leaves=2, spines=2, options=FabricOptions(gbps=100, uplink_gbps=100))
DEVICE = "soft_eth0"
QPN = re.compile(r"QPN (0x[0-9a-f]+)")
LOOKUP = """
import ctypes
class Found(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), *((name, ctypes.c_void_p) for name in ("base", "name", "at"))]
verbs, libc, found = ctypes.CDLL("libibverbs.so"), ctypes.CDLL(None), Found()
libc.dlvsym.restype, libc.dlvsym.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p]
for name in (b"ibv_modify_qp", b"ibv_open_device"):
    libc.dladdr(ctypes.c_void_p(libc.dlvsym(verbs._handle, name, b"IBVERBS_1.1")), ctypes.byref(found))
    print(found.file.decode())
"""


@pytest.fixture(scope="module")
def stand_in(tmp_path_factory: pytest.TempPathFactory) -> StandIn:
    try:
        return build_stand_in(tmp_path_factory.mktemp("softverbs"))
    except NotPresent as absence:
        pytest.skip(str(absence))


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shim")
    build_shim(folder, VERBS_LIBRARY, "verbs/libibverbs.so")
    return folder


@pytest.fixture(scope="module")
def fabric() -> Iterator[Fabric]:
    with build_fabric(TOPOLOGY) as built:
        yield built


def is_bound(fabric: Fabric, port: int) -> bool:
    listed = fabric.homes["h0"].run(Path("/proc/thread-self/net/tcp").read_text)
    return f":{port:04X} 00000000:0000 0A" in listed


def play(fabric: Fabric, commands: Sequence[Sequence[str]], port: int, *environments: Mapping[str, str]) -> list[str]:
    """Run a server on h0, then its client on h1; return what each said when both have ended well."""
    started = []
    for host, command, environment in zip(("h0", "h1"), commands, environments, strict=True):
        process = fabric.run_in(host, command, environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        started.append(process)
        if host == "h0":
            eventually(lambda: is_bound(fabric, port))
    said = [process.communicate(timeout=LIMIT_S)[0].decode() for process in started]
    assert [process.returncode for process in started] == [0, 0], said
    return said


def pingpong(fabric: Fabric, *environments: Mapping[str, str]) -> list[str]:
    server = ["ibv_rc_pingpong", "-d", DEVICE, "-g", "0", "-c", "-e", "-s", "20000", "-n", "50"]
    return play(fabric, (server, [*server, fabric.address_of("h0", "eth0")]), 18515, *environments)


def test_pingpong_of_debian_runs_unmodified(fabric: Fabric, stand_in: StandIn) -> None:
    with captured_roce(fabric.homes[port_behind(fabric, "h0").node]) as seen:
        said = pingpong(fabric, stand_in.environment(), stand_in.environment())
    local, remote = (int(found, 16) for found in QPN.findall(said[0]))
    port = port_of_label(default_label(local, remote))
    assert "50 iters" in said[0]
    assert "invalid data" not in "".join(said)
    assert set(seen) == {(fabric.address_of(host, "eth0"), port) for host in ("h0", "h1")}


def plan_of(shim: Path, folder: Path, generation: int, here: str, there: str, *ports: int) -> ShimFiles:
    """Write the plan of a host's queue pairs as its collector does; return where its programs find it."""
    files = ShimFiles(shim / VERBS_LIBRARY, folder)
    way: dict[str, Any] = {
        "nic": "eth0",
        "dst": "other",
        "dst_nic": "eth0",
        "links": ("leaf0--spine0",),
    }  # Any: fields
    way |= {"proto": "roce", "source": here, "destination": there}
    choices = [PathChoice(connection=f"job/q{n}", sports=(port,), **way) for n, port in enumerate(ports)]
    files.plan.parent.mkdir(parents=True)
    when = {"generation": generation, "made_ns": 1, "lease_end_ns": 2}
    planned = HostPaths(host="h", is_enforceable=True, choices=choices, **when)
    write_queue_pairs(files.plan.with_name("plan.queue-pairs"), planned)
    return files


def test_planned_ports_are_on_the_wire(fabric: Fabric, stand_in: StandIn, shim: Path, tmp_path: Path) -> None:
    ends = [fabric.address_of(host, "eth0") for host in ("h0", "h1")]
    server = plan_of(shim, tmp_path / "h0", 3, ends[0], ends[1], 50_001)
    client = plan_of(shim, tmp_path / "h1", 4, ends[1], ends[0], 60_002, 60_003)
    environments = [{**files.environment(), "LD_LIBRARY_PATH": str(stand_in.folder)} for files in (server, client)]
    with captured_roce(fabric.homes[port_behind(fabric, "h0").node]) as seen:
        said = pingpong(fabric, *environments)
    assert "50 iters" in said[0]
    assert set(seen) == {(ends[0], 50_001), (ends[1], 60_002)}
    (report,) = read_reports(client.reports)
    assert (report.local, report.sport, report.remote, report.dport) == (ends[1], 60_002, ends[0], 4791)
    assert (report.generation, report.outcome) == (4, "enforced")


def test_nccl_s_way_of_looking_symbols_up_finds_the_shim_first(stand_in: StandIn, shim: Path) -> None:
    found = subprocess.run(
        [sys.executable, "-c", LOOKUP],
        env={**os.environ, "LD_LIBRARY_PATH": f"{shim}/verbs:{stand_in.folder}"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    assert found == [f"{shim}/verbs/libibverbs.so", f"{stand_in.folder}/libibverbs.so.1"]


def test_contents_keys_immediate_data_and_a_lost_peer_are_what_a_nic_makes_of_them(
    fabric: Fabric, stand_in: StandIn, tmp_path: Path
) -> None:
    commands = ([stand_in.exchange, DEVICE, "serve"], [stand_in.exchange, DEVICE, fabric.address_of("h0", "eth0")])
    said = play(fabric, commands, 7700, stand_in.environment(tmp_path), stand_in.environment(tmp_path / "client"))
    assert said[0].splitlines()[1:] == ["writes ok", "sends ok", "keys ok"]
    assert said[1].splitlines()[-1].endswith("transport retry counter exceeded")
    counted = RdmaSource("h0", tmp_path).read(1, ()).tables["nic_counters"].to_pylist()
    (row,) = [row for row in counted if row["nic"] == DEVICE]
    assert row["up"]
    assert row["speed_mbps"] == 100_000
    assert row["rx_bytes"] > 4 << 20 > row["tx_bytes"] > 0
    assert dict(row["extra"])["resp_remote_access_errors"] == 3


def test_lost_and_found_link_is_told_as_an_event_of_the_port(fabric: Fabric, stand_in: StandIn) -> None:
    command = [stand_in.exchange, DEVICE, "watch"]
    watching = fabric.run_in("h0", command, stand_in.environment(), stdout=subprocess.PIPE)
    assert watching.stdout is not None
    assert watching.stdout.readline() == b"watching\n"
    for state, told in (("down", b"port error\n"), ("up", b"port active\n")):
        set_link(fabric, port_behind(fabric, "h0"), state)
        assert watching.stdout.readline() == told
    assert watching.wait(LIMIT_S) == 0


def port_behind(fabric: Fabric, host: str) -> Port:
    cable, near = fabric.plan.cable_by_port[host, "eth0"]
    return cable.far_end(near)


def set_link(fabric: Fabric, port: Port, state: str) -> None:
    def change(route: Any) -> None:  # Any: pyroute2 gives no types
        route.link("set", index=find_interface(route, port.name), state=state)

    fabric.homes[port.node].change(change)
