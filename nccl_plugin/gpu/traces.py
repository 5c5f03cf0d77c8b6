"""Records callback traces of a training-like job with known faults, for replay on machines without a GPU."""

import lzma
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lab import EVERY_CALLBACK, Lab, Outcome, Run, lockstep_side
from rings import CALLBACK_KIND, Ring

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # lockstep is not installed where there is a GPU

from importers.traces.callback_trace import Event, RankRecording, RecordedComm, cut_events, events_of, trace_lines

RANKS, TP, STEPS, ONSET = 8, 2, 56, 40  # the first steps of a job are uneven
TP_BYTES, DP_BYTES, COMPUTE_US = 16 << 10, 512 << 10, 4000
FIRST_KEPT, KEPT_STEPS = ONSET - 4, 10
ENVIRONMENT = {"NCCL_MAX_NCHANNELS": "1"}  # more say the same again, and traces are to be small
LIMIT_BYTES_PER_S = 20_000_000
LAST_NS = 1 << 62  # a UNIX time after all others
WHAT_RUNS = "8 ranks, tp2 x dp4: per step 2x(compute, TP AllReduce 16 KiB), DP AllReduce 512 KiB"


@dataclass(frozen=True)
class Scenario:
    """A run with at most one fault, and who is to blame."""

    name: str
    fault: str  # in words
    word: str | None = None  # fault=KIND:RANK:STEP:US of the rank program
    rank: int = -1
    classes: tuple[str, ...] = ()
    component: str = ""
    accept: tuple[str, ...] = ()
    partial: tuple[str, ...] = ()
    side: str | None = None
    live: bool = False


SCENARIOS = (
    Scenario("gpu_healthy", "none"),
    Scenario(
        "gpu_sleep_r2", "rank 2 sleeps 20 ms before every step from the onset on", f"fault=sleep:2:{ONSET}:20000", 2,
        ("noncomm_slow",), "host:h2", ("rank:2",), ("gpu:h2/0",),
    ),
    Scenario(
        "gpu_spin_r5", "rank 5 computes 15 ms longer per step from the onset on", f"fault=spin:5:{ONSET}:15000", 5,
        ("noncomm_slow",), "gpu:h5/0", ("host:h5", "rank:5"),
    ),
    Scenario(
        "gpu_stop_r6_live", "rank 6 is stopped at the onset; its job hangs", f"fault=stop:6:{ONSET}:0", 6,
        ("noncomm_hang",), "host:h6", ("rank:6", "gpu:h6/0"), live=True,
    ),
    Scenario(
        "gpu_slow_nic_r4", "host h4 sends at most 20 MB/s from the onset on", f"fault=notice:4:{ONSET}:0", 4,
        ("comm_slow",), "nic:h4/eth0", (), ("host:h4", "link:h4/eth0--h5/eth0", "link:h4/eth0--h6/eth0"), "tx",
    ),
)  # fmt: skip


def record(lab: Lab, library: str, scenario: Scenario) -> Outcome:
    def words(rank: int, folder: Path) -> list[str]:
        side = lockstep_side("plugin", library, folder, rank, EVERY_CALLBACK | {"LOCKSTEP_JOB": scenario.name})
        train = f"train={STEPS}:{TP}:{TP_BYTES}:{DP_BYTES}:{COMPUTE_US}"
        return [side, *([scenario.word] if scenario.word else []), train]

    is_slow_link = scenario.classes == ("comm_slow",)
    limit = (scenario.rank, LIMIT_BYTES_PER_S) if is_slow_link else None
    run = Run(scenario.name, RANKS, words, environment=ENVIRONMENT, namespaces=True, timeout_s=40, limit=limit)
    return lab.run(run)


def write_trace(scenario: Scenario, outcome: Outcome, folder: Path) -> str:
    """Writes the cut around the onset, and says in one line what became of it."""
    rings = outcome.rings(copied=scenario.live)
    windows = []
    for rank in range(len(rings)):
        began = _steps_of(outcome, rank)
        windows.append((began[FIRST_KEPT], LAST_NS if scenario.live else began[FIRST_KEPT + KEPT_STEPS]))
    recordings = [recording_of(rank, ring, b"".join(ring.records(CALLBACK_KIND))) for rank, ring in enumerate(rings)]
    line = about(scenario, outcome, rings, epoch_of(recordings))
    lost = sum(ring.overwritten_records() for ring in rings)
    written = write_windows(folder / f"{scenario.name}.jsonl.xz", line, recordings, windows)
    return f"{written}, {lost} records overwritten"


def epoch_of(recordings: Sequence[RankRecording]) -> int:
    """Where a trace's own time begins: a second before the first communicator."""
    return min(comm.init_ns for recording in recordings for comm in recording.comms) - 1_000_000_000


def write_windows(
    path: Path, line: dict[str, object], recordings: Sequence[RankRecording], windows: Sequence[tuple[int, int]]
) -> str:
    """Writes what each rank called between two UNIX times, and says in one line what became of it."""
    epoch_ns = epoch_of(recordings)
    events: list[Event] = []
    for recording, (first_ns, last_ns) in zip(recordings, windows, strict=True):
        whole = list(events_of(recording, epoch_ns))
        events += cut_events(whole, first_ns - epoch_ns, last_ns - epoch_ns)
    lines = list(trace_lines(line, recordings, events, epoch_ns))
    path.write_bytes(lzma.compress("".join(each + "\n" for each in lines).encode()))
    return f"{path.name}: {len(lines)} lines, {path.stat().st_size} bytes"


def recording_of(rank: int, ring: Ring, records: bytes) -> RankRecording:
    """The callbacks of a rank and what is needed to read them, from its ring file."""
    comms = [
        RecordedComm(
            index=comm.index, id=comm.id, rank=comm.rank, nranks=comm.nranks, nnodes=comm.nnodes, name=comm.name,
            init_ns=ring.unix_ns(comm.init_ticks), destroy_ns=comm.destroy_ticks and ring.unix_ns(comm.destroy_ticks),
        )
        for comm in ring.comms()
    ]  # fmt: skip
    return RankRecording(rank, ring.pid, ring.host, ring.api_version, comms, records, ring.unix_ns)


def about(scenario: Scenario, outcome: Outcome, rings: Sequence[Ring], epoch_ns: int) -> dict[str, object]:
    """The first line: what ran, what was done to it, and what an analysis should find."""
    layout: dict[str, object] = {"tp": TP, "dp": RANKS // TP, "pp": 1, "rank_order": "tp fastest, then dp"}
    end_step = None if scenario.live else FIRST_KEPT + KEPT_STEPS
    line: dict[str, object] = {
        "run": scenario.name,
        "nccl": rings[0].nccl_release,
        "ranks": RANKS,
        "op": WHAT_RUNS,
        "fault": scenario.fault,
        "hosts": {str(rank): f"h{rank}" for rank in range(RANKS)},
        "nic": "eth0",
        "layout": layout | {"comms": layout_of(rings)},
        "truth": truth_of(scenario, outcome, epoch_ns),
        "cut": {"first_step": FIRST_KEPT, "end_step": end_step, "of": STEPS},
        "live": scenario.live,
        "mask": hex(rings[0].status()["mask"]),
        "clock": "one clock for all hosts; no skew added",
        "env": ENVIRONMENT,
    }
    return line | ({"snapshot_mono_ns": outcome.acted_ns - epoch_ns} if scenario.live else {})


def truth_of(scenario: Scenario, outcome: Outcome, epoch_ns: int) -> list[dict[str, object]]:
    """What is wrong from when on; empty when nothing is."""
    if not scenario.component:
        return []
    limited = scenario.classes == ("comm_slow",)
    onset_ns = outcome.acted_ns if limited else _steps_of(outcome, scenario.rank)[ONSET]
    truth: dict[str, object] = {"class": list(scenario.classes), "component": scenario.component}
    truth |= {"accept": list(scenario.accept), "partial": list(scenario.partial), "ranks": [scenario.rank]}
    truth |= {"onset_step": ONSET, "onset_mono_ns": onset_ns - epoch_ns, "onset_unix_ns": onset_ns}
    return [truth | ({"side": scenario.side} if scenario.side else {})]


def layout_of(rings: Sequence[Ring]) -> list[dict[str, object]]:
    """Every communicator with its members as world ranks, in the order of the communicator's own ranks."""
    members: dict[int, dict[int, int]] = {}
    for world_rank, ring in enumerate(rings):
        for comm in ring.comms():
            members.setdefault(comm.id, {})[comm.rank] = world_rank
    found = {ident: [by_rank[rank] for rank in sorted(by_rank)] for ident, by_rank in members.items()}
    return [{"id": f"{ident:016x}", "role": _role(ranks), "members": ranks} for ident, ranks in found.items()]


def _role(members: Sequence[int]) -> str:
    if len(members) == RANKS:
        return "world"
    return "tp" if members[1] - members[0] == 1 else "dp"


def _steps_of(outcome: Outcome, rank: int) -> list[int]:
    steps = [line["steps"] for line in outcome.lines[rank] if "steps" in line]
    assert isinstance(steps[0], list)
    return [int(each) for each in steps[0]]
