"""Rows of the tables that tests/builders.py has no words for, as the tests of dashboards need them."""

from lockstep.records import ClockQuality, FabricCounter, GpuHealth, Probe, Progress
from tests.builders import SECOND, T0


def progress(rank: int, *, enqueued: int, done: int, open_s: int | None) -> Progress:
    """Return how far a rank has come at T0, with an operation that is open for so long."""
    return Progress(
        host="h0",
        job="j1",
        attempt=0,
        comm=7,
        rank=rank,
        func="AllReduce",
        peer=-1,
        ts_ns=T0,
        enqueued=enqueued,
        started=done,
        done=done,
        open_bytes=None,
        open_dtype=None,
        open_algo=None,
        oldest_open_ns=None if open_s is None else T0 - open_s * SECOND,
        head_state="idle" if open_s is None else "wire",
        head_peer=None,
        head_channel=None,
    )


def gpu(index: int, *, at_s: int, throttle: str = "", errors: int = 0) -> GpuHealth:
    return GpuHealth(
        host="h0",
        ts_ns=T0 + at_s * SECOND,
        gpu=index,
        gpu_uuid=f"GPU-{index}",
        sm_mhz=1200,
        temp_c=81.5,
        power_w=640.0,
        throttle=throttle,
        ecc_sbe=errors,
        ecc_dbe=errors,
        nvlink_errors=errors,
        pcie_replays=errors,
        util=0.5,
    )


def port(*, at_s: int, drops: int) -> FabricCounter:
    return FabricCounter(
        host="head",
        ts_ns=T0 + at_s * SECOND,
        switch="leaf1",
        port="swp1",
        up=True,
        speed_mbps=400_000,
        rx_bytes=0,
        tx_bytes=0,
        errors=0,
        drops=drops,
        pause_rx=0,
        pause_tx=None,
        fec_uncorrected=None,
        extra={},
    )


def probe(sport: int, *, rtt_ns: int | None) -> Probe:
    return Probe(
        host="h0",
        ts_ns=T0,
        src_nic="eth0",
        dst="h1",
        dst_nic="eth0",
        proto="udp",
        sport=sport,
        dport=2,
        rtt_ns=rtt_ns,
        hops=[],
    )


def clock() -> ClockQuality:
    return ClockQuality(host="h0", ts_ns=T0, offset_ns=-500, error_ns=900, source="ptp")
