"""Late ranks in recordings of real NCCL are named, and nobody in those without one."""

from pathlib import Path

import pytest

from analyzer.context import Context
from analyzer.lateness.late import LatenessMemory, LatenessOptions, find_late
from analyzer.lateness.reading import read_lateness
from analyzer.roster import read_roster
from analyzer.windows import Window
from lockstep.capture.exchange import load_capture
from lockstep.capture.reading import read_capture
from lockstep.intake.callback_capture import import_callbacks
from lockstep.store.store import Store
from tests.lockstep.intake.traces import TRACES

LATE = {
    "f_gpuspin_r1": "gpu:h1/0",
    "f_hostsleep_r2": "host:h2",
    "gpu_sleep_r2": "host:h2",
    "gpu_spin_r5": "gpu:h5/0",
    "td_gpu_r3": "gpu:h3/0",
    "torch_ddp_gpu_r1": "gpu:h1/0",
}
IN_TIME = (
    "K_a2a_const_n228",
    "f_base",
    "f_netns_base",
    "f_netns_egress_r2",
    "f_pace_r2",
    "g8_base",
    "gpu_healthy",
    "gpu_slow_nic_r4",
    "pp_healthy",
    "td_healthy",
    "td_link_4to6",
    "torch2",
    "tree_healthy",
)


def name_late(trace: str, store: Store, folder: Path, plugin: Path) -> list[tuple[str, str]]:
    """Return what one look at a whole recording names."""
    import_callbacks([TRACES / f"{trace}.jsonl.xz"], folder / "capture", plugin, lambda *_: None)
    capture = read_capture(folder / "capture")
    load_capture(store, capture)
    info = capture.info
    roster = read_roster(store, info.job, 0)
    context = Context(info.job, 0, Window(info.start_ns, info.end_ns), info.start_ns, roster, None)
    findings, _ = find_late(read_lateness(store, context), LatenessMemory(), context, LatenessOptions())
    return [(finding.fault_class, finding.component) for finding in findings]


@pytest.mark.slow
@pytest.mark.parametrize(("trace", "component"), LATE.items())
def test_the_late_rank_of_a_recording_is_named(
    trace: str, component: str, embedded_store: Store, tmp_path: Path, plugin_library: Path
) -> None:
    assert name_late(trace, embedded_store, tmp_path, plugin_library) == [("noncomm_slow", component)]


@pytest.mark.slow
@pytest.mark.parametrize("trace", IN_TIME)
def test_nobody_is_named_in_a_recording_without_a_late_rank(
    trace: str, embedded_store: Store, tmp_path: Path, plugin_library: Path
) -> None:
    assert name_late(trace, embedded_store, tmp_path, plugin_library) == []
