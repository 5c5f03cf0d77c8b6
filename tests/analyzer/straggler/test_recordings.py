"""Stragglers in recordings of real NCCL are named, and nobody in those without one."""

from pathlib import Path

import pytest

from analyzer.straggler.memory import StragglerMemory
from analyzer.straggler.reading import read_straggler_facts
from analyzer.straggler.stragglers import StragglerOptions, find_stragglers
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Window
from importers.traces.callback_capture import import_callbacks
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import read_capture
from lockstep.store.store import Store
from tests.importers.traces.traces import TRACES
from tests.tiers import long_except

LATE = {
    "f_gpuspin_r1": "gpu:h1/0",
    "f_hostsleep_r2": "host:h2",
    "gpu_sleep_r2": "host:h2",
    "gpu_spin_r5": "gpu:h5/0",
    "td_gpu_r3": "gpu:h3/0",
    "torch_ddp_gpu_r1": "gpu:h1/0",
}
IN_TIME = (
    "K_a2a_const_n228 f_base f_netns_base f_netns_egress_r2 f_pace_r2 g8_base gpu_healthy gpu_slow_nic_r4 "
    "pp_healthy td_healthy td_link_4to6 torch2 tree_healthy"
)


def name_late(trace: str, store: Store, folder: Path, plugin: Path) -> list[tuple[str, str]]:
    """Return what one evaluation at a whole recording names."""
    import_callbacks([TRACES / f"{trace}.jsonl.xz"], folder / "capture", plugin, lambda *_: None)
    capture = read_capture(folder / "capture")
    load_capture(store, capture)
    info = capture.info
    roster = read_roster(store, info.job, 0)
    context = Context(info.job, 0, Window(info.start_ns, info.end_ns), info.start_ns, roster, None)
    findings, _ = find_stragglers(
        read_straggler_facts(store, context), StragglerMemory(), context, StragglerOptions()
    )
    return [(finding.fault_class, finding.component) for finding in findings]


@pytest.mark.slow
@pytest.mark.parametrize("trace", long_except(("gpu_spin_r5", "f_hostsleep_r2"), LATE))
def test_the_late_rank_of_a_recording_is_named(
    trace: str, embedded_store: Store, tmp_path: Path, plugin_library: Path
) -> None:
    assert name_late(trace, embedded_store, tmp_path, plugin_library) == [("noncomm_slow", LATE[trace])]


@pytest.mark.slow
@pytest.mark.parametrize("trace", long_except(("gpu_slow_nic_r4", "td_healthy"), IN_TIME.split()))
def test_nobody_is_named_in_a_recording_without_a_late_rank(
    trace: str, embedded_store: Store, tmp_path: Path, plugin_library: Path
) -> None:
    assert name_late(trace, embedded_store, tmp_path, plugin_library) == []
