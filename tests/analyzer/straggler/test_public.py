"""Production traces that others published: an uneven pipeline is nobody's fault."""

import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analyzer.straggler.excess import measure_excess
from analyzer.straggler.memory import StragglerMemory
from analyzer.straggler.operations import Operations
from analyzer.straggler.reading import StragglerFacts
from analyzer.straggler.stragglers import StragglerOptions, find_stragglers
from tests.analyzer.straggler.job import Act, Job, context

# Who takes part: in a chain the stage next to this one, the replicas of a stage, or everybody.
_CHAIN = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
_REPLICAS = ("grads-reduce-scatter", "params-all-gather", "layernorm-grads-all-reduce")
_EVERYBODY = "optimizer-clip-main-grad"
_KINDS = (*_CHAIN, *_REPLICAS, _EVERYBODY)
_STEPS_A_LOOK = 3
_STEP_S = 3.0  # published times begin with each step, of 2.4 s at most, so steps are laid one after the other


def read_trace(name: str) -> pa.Table:
    """Return the communication in a published trace."""
    if "LOCKSTEP_PUBLIC_DATA" not in os.environ:
        pytest.skip("no public data here: set LOCKSTEP_PUBLIC_DATA to the folder that holds it")
    rows = pq.read_table(Path(os.environ["LOCKSTEP_PUBLIC_DATA"], f"whatif_bytedance/{name}/trace-{name}.parquet"))
    kinds = rows["optype"].cast(pa.string())
    told = rows.set_column(rows.schema.get_field_index("optype"), "optype", kinds)
    return told.filter(pa.compute.is_in(kinds, pa.array(_KINDS)))


def as_operations(rows: pa.Table, steps: list[int]) -> Operations:
    """Return what ranks did in some steps, with their own time before each operation."""
    chosen = rows.filter(pa.compute.is_in(rows["step"], pa.array(steps)))
    stage, replica, rank = (chosen[name].to_numpy().astype(np.int64) for name in ("stage", "dp_rank", "rank"))
    kind = np.array([_KINDS.index(name) for name in chosen["optype"].to_pylist()])
    step = np.searchsorted(steps, chosen["step"].to_numpy())
    in_chain, is_everybody = kind < len(_CHAIN), kind == len(_KINDS) - 1
    start_s = step * _STEP_S + chosen["start_ts"].to_numpy().astype(np.float64)
    dur_s = chosen["duration"].to_numpy().astype(np.float64)
    gap_ns = 1e9 * own_time(rank, start_s, start_s + dur_s)
    apart = np.array([*_CHAIN.values()])[np.minimum(kind, len(_CHAIN) - 1)]
    return Operations(
        process=rank,
        comm=np.where(in_chain, 100 + replica, np.where(is_everybody, 300, 200 + stage)).astype(np.uint64),
        rank=np.where(in_chain, stage, np.where(is_everybody, rank, replica)),
        func=kind.astype(np.uint64),
        sends=np.isin(kind, (0, 2)),
        peer=np.where(in_chain, stage + apart, -1),
        seq=step * 1000 + chosen["seq_id"].to_numpy().astype(np.int64),
        replay=np.zeros(len(rank), np.int64),
        size=np.zeros(len(rank), np.int64),
        start_ns=(start_s * 1e9).astype(np.int64),
        dur_ns=dur_s * 1e9,
        gap_ns=gap_ns,
        gpu_ns=gap_ns,
    ).take(np.isfinite(gap_ns) & (gap_ns < 1e9 * _STEP_S / 2))


def own_time(rank: np.ndarray, start: np.ndarray, end: np.ndarray) -> np.ndarray:
    """Return the time from the end of all that a rank began before to each start; NaN before the first."""
    gaps = np.full(len(rank), np.nan)
    for each in np.unique(rank):
        mine = np.flatnonzero(rank == each)[np.argsort(start[rank == each], kind="stable")]
        latest = np.maximum.accumulate(end[mine])
        gaps[mine[1:]] = np.maximum(start[mine[1:]] - latest[:-1], 0.0)
    return gaps


def test_a_last_stage_that_is_too_heavy_is_not_blamed() -> None:
    rows = read_trace("ST")
    steps, ranks = np.unique(rows["step"].to_numpy()).tolist(), int(pa.compute.max(rows["rank"]).as_py()) + 1
    where = context(Job(ranks, [Act(1.0, [list(range(ranks))])]).roster())
    for first in range(0, len(steps) - _STEPS_A_LOOK + 1, _STEPS_A_LOOK):
        operations = as_operations(rows, steps[first : first + _STEPS_A_LOOK])
        excess = measure_excess(operations, False, ranks, None)
        assert excess is not None
        assert excess.processes.tolist() == list(range(ranks))
        assert find_stragglers(StragglerFacts(operations), StragglerMemory(), where, StragglerOptions())[0] == []
