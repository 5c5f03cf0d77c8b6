"""Readings of hosts, switches and GPUs over two minutes, in which some counters grow."""

from typing import Any

from analyzer.evidence.observations import Evidence
from analyzer.evidence.reading import read_evidence
from analyzer.windows.jobs import Roster, build_roster
from analyzer.windows.silence import HostReport
from analyzer.windows.window import Context, Window
from lockstep.fabrics import leaf_spine
from lockstep.records import Comm, Event, FabricCounter, GpuHealth, HostRecord, NicCounter, Probe
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from tests.analyzer.build import insert
from tests.builders import SECOND, T0, make, rows

HOSTS = 8
NAMES = [f"h{number}" for number in range(HOSTS)]
FABRIC = TopologyIndex(leaf_spine(hosts=HOSTS, nics_per_host=1, leaves=4, spines=2))
BEGIN, ONSET, END = 0, 80, 100  # seconds after T0: readings begin, something grows, the evaluation ends


def look(
    store: Store, *records: HostRecord, topology: TopologyIndex | None = FABRIC, stalled: str | None = None
) -> Evidence:
    """Return the evidence of an evaluation at the last five seconds of what the records tell.

    A source may have stalled on h3 ten seconds before the end.
    """
    insert(store, *records)
    window = Window(T0 + (END - 5) * SECOND, T0 + END * SECOND)
    missing = {stalled: T0 + (END - 10) * SECOND} if stalled else {}
    reports = {"h3": HostReport(window.end_ns, window.end_ns, stalled=missing)}
    return read_evidence(store, Context("j1", 0, window, window.start_ns, roster(), topology, reports=reports))


def roster() -> Roster:
    return build_roster(rows(*(make(Comm, host=f"h{n}", rank=n, nranks=HOSTS, world_rank=n) for n in range(HOSTS))))


def grown(second: int, by: float, since: int = ONSET) -> int:
    """Return what a counter shows that grows by so much per second from some moment on."""
    return int(max(second - since, 0) * by)


def nics(host: str, since: int = ONSET, **per_second: float) -> list[NicCounter]:
    """Return the readings of all hosts' NICs, on one of which counters grow from some moment on."""

    def counted(name: str, second: int) -> dict[str, int]:
        return {key: grown(second, by, since) for key, by in per_second.items()} if name == host else {}

    usual = {"retrans": 0, "speed_mbps": 400_000}
    return [
        make(NicCounter, host=name, ts_ns=T0 + second * SECOND, **usual | counted(name, second))
        for name in NAMES
        for second in range(BEGIN, END, 5)
    ]


def queues(
    host: str, elsewhere: float, others_send: float = 1.0, seconds: range = range(END - 5, END)
) -> list[NicCounter]:
    """Return readings in which packets always wait in front of one host's NIC, elsewhere in some share of them."""

    def reading(n: int, name: str, second: int) -> NicCounter:
        waits = name == host or (second * HOSTS + n) % 10 < 10 * elsewhere
        sent = int(second * 1e9 * (1.0 if name == host else others_send))
        usual = {"retrans": 0, "speed_mbps": 400_000, "extra": {"qdisc_backlog_bytes": 70_000 * waits}}
        return make(NicCounter, host=name, ts_ns=T0 + second * SECOND, tx_bytes=sent, **usual)

    return [reading(n, name, second) for n, name in enumerate(NAMES) for second in seconds]


def ports(switch: str, port: str, **per_second: float) -> list[FabricCounter]:
    """Return the readings of all switch ports, on one of which counters grow after the onset."""
    ends = [pair for link in FABRIC.topology.links for pair in ((link.a, link.b), (link.b, link.a))]
    counters = dict.fromkeys(("errors", "drops", "pause_rx", "pause_tx", "fec_uncorrected"), 0.0)
    return [
        make(FabricCounter, ts_ns=T0 + second * SECOND, switch=near, port=far, up=True, speed_mbps=400_000, **counts)
        for near, far in ends
        if "/" not in near
        for second in range(BEGIN, END, 10)
        for growing in [counters | per_second if (near, far) == (switch, port) else counters]
        for counts in [{name: grown(second, by) for name, by in growing.items()}]
    ]


def gpus(host: str, **fields: Any) -> list[GpuHealth]:
    """Return the readings of one GPU of each host, of which one reads as told from the onset on."""
    usual: dict[str, Any] = {"sm_mhz": 1980, "ecc_sbe": 0, "ecc_dbe": 0, "nvlink_errors": 0, "pcie_replays": 0}
    usual |= {"temp_c": 60.0, "power_w": 500.0, "util": 1.0}
    return [
        make(GpuHealth, host=name, ts_ns=T0 + second * SECOND, gpu_uuid=f"GPU-{name}", **usual | told)
        for name in NAMES
        for second in range(BEGIN, END, 5)
        for told in [fields if name == host and second >= ONSET else {}]
    ]


def event(kind: str, component: str, severity: str = "error", at: int = END - 10, detail: str | None = None) -> Event:
    fields = {"kind": kind, "component": component, "severity": severity, "message": "m", "detail": detail}
    return make(Event, host=component.partition(":")[2].split("/")[0], ts_ns=T0 + at * SECOND, **fields)


def probe(src: str, dst: str, hops: list[str], at: int, rtt_ns: int | None) -> Probe:
    ports = {"sport": 33_000, "dport": 4791}
    return make(Probe, host=src, ts_ns=T0 + at * SECOND, dst=dst, rtt_ns=rtt_ns, hops=hops, **ports)
