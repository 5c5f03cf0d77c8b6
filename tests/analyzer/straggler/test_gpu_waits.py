"""A GPU that is always last is named by what proxy threads waited for it, where NCCL tells no GPU times."""

from collections.abc import Callable, Iterable

import numpy as np
import pytest

from analyzer.straggler.gpu_waits import GpuWaits, read_gpu_waits
from analyzer.straggler.memory import StragglerMemory
from analyzer.straggler.reading import StragglerFacts
from analyzer.straggler.stragglers import StragglerOptions, find_stragglers, is_slower
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import Context, Finding, Window
from lockstep.records import Collective, Comm, Transfer
from lockstep.store.store import Store
from tests.analyzer.build import insert
from tests.analyzer.straggler.job import MS, Job, context, world
from tests.builders import SECOND, T0, make

OPERATIONS = 32  # sampled in half a minute, of which every fourth comes after compute


def together(process: np.ndarray, operation: np.ndarray, own_ms: np.ndarray, per_s: float) -> GpuWaits:
    """Return waits of ranks that do the same operations."""
    nothing = np.zeros(len(process), np.int64)
    return GpuWaits(process, operation, own_ms * MS, per_s, nothing.astype(np.uint64), nothing)


def said(waits: GpuWaits, ranks: int, slow_senders: Iterable[str] = ()) -> list[Finding]:
    facts = StragglerFacts(gpu_waits=waits, slow_senders=frozenset(slow_senders))
    where = context(Job(ranks, world(ranks), gpus_per_host=1).roster())
    return find_stragglers(facts, StragglerMemory(), where, StragglerOptions())[0]


def waited(ranks: int, late_ms: float, seed: int = 3, slow_senders: tuple[str, ...] = ()) -> list[Finding]:
    """Return what is said of a job on hosts of one rank whose second GPU is late, by sampled transfers alone."""
    process, operation = np.tile(np.arange(ranks), OPERATIONS), np.repeat(np.arange(OPERATIONS), ranks)
    own_ms = np.where(operation % 4 == 0, np.random.default_rng(seed).exponential(3.0, len(process)), 0.1)
    own_ms += np.where((operation % 4 == 0) & (process == 1), late_ms, 0.0)
    return said(together(process, operation, own_ms, 8.0), ranks, slow_senders)


def test_gpu_that_is_always_last_is_named_and_how_often_it_was() -> None:
    (finding,) = waited(8, 80.0)
    assert (finding.fault_class, finding.component) == ("noncomm_slow", "gpu:h1/0")
    assert finding.evidence[-1] == {"kind": "gpu_wait", "last": 8, "of": 8}
    assert finding.lost_share == pytest.approx(80e-3 / 4 * 8, rel=0.3)


def test_gpu_before_which_data_lies_that_its_host_cannot_send_on_is_not() -> None:
    assert waited(8, 80.0, slow_senders=("h1",)) == []
    assert waited(8, 80.0, slow_senders=("h0", "h2")), "they send to it, or behind it"
    assert waited(2, 80.0) == [], "of two ranks nobody is odd"


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_gpus_that_are_last_in_turn_are_not(ranks: int, seed: int) -> None:
    assert waited(ranks, 0.0, seed) == []


def test_long_waits_for_one_gpu_count_and_not_how_often_hosts_are_late_by_a_little() -> None:
    """As under data parallelism on real GPUs: one operation of a step is late, and hosts hiccup in all others."""
    chance = np.random.default_rng(4)
    ranks, operations = 4, 84
    process, operation = np.tile(np.arange(ranks), operations), np.repeat(np.arange(operations), ranks)
    hiccups = chance.integers(0, ranks, operations)[operation] == process
    own_ms = np.where(hiccups, chance.uniform(1.0, 18.0, len(process)), 0.8)
    own_ms[(operation % 7 == 0) & (process == 2)] = 115.0
    short_ms = np.where(own_ms > 100, 0.8, own_ms)
    found = [said(together(process, operation, ms, 20.0), ranks) for ms in (own_ms, short_ms)]
    assert [[finding.component for finding in findings] for findings in found] == [["gpu:h2/0"], []]


def test_job_that_does_fewer_operations_than_it_used_to_is_slower_without_any_steps() -> None:
    def is_slow(paces: list[float]) -> bool:
        roster = Job(4, world(4), gpus_per_host=1).roster()
        memory = StragglerMemory()
        for number, per_s in enumerate(paces):
            end_ns = T0 + (6 + 2 * number) * SECOND
            where = Context("j1", 0, Window(end_ns - 6 * SECOND, end_ns), T0, roster, None)
            memory = find_stragglers(StragglerFacts(per_s=per_s), memory, where, StragglerOptions())[1]
        return is_slower(memory, where, StragglerOptions())

    usual = [88.0, 91.0, 84.0, 90.0, 87.0, 89.0, 82.0]
    assert not is_slow(usual)
    assert is_slow([*usual, 64.0])
    assert not is_slow([*usual[:3], 64.0]), "two windows before it share too much with it"


STAGES = 4
ONSET_S = 40.0


def follow_stages(grown: Callable[[np.ndarray, np.ndarray], np.ndarray], until_s: int = 80) -> list[list[str]]:
    """Return who is named in each evaluation of a pipeline of four ranks that becomes slower, by sampled receives.

    What grows is told by when receives end, in seconds, and of which ranks they are.
    """
    chance = np.random.default_rng(7)
    at_s = np.sort(chance.uniform(0, until_s, 12 * until_s))
    process = chance.integers(0, STAGES, len(at_s))
    own_ms = chance.exponential(0.4, len(at_s)) + np.where(grown(at_s, process), 115.0, 0.0)
    roster, memory, named = Job(STAGES, world(STAGES), gpus_per_host=1).roster(), StragglerMemory(), []
    for end_s in range(6, until_s, 2):
        seen = (at_s >= end_s - 30) & (at_s < end_s)
        columns = (process[seen], np.flatnonzero(seen), own_ms[seen] * MS)
        waits = GpuWaits(
            *columns, 90.0, (process[seen] + 1).astype(np.uint64), T0 + (at_s[seen] * 1e9).astype(np.int64)
        )
        window = Window(T0 + (end_s - 6) * SECOND, T0 + end_s * SECOND)
        facts = StragglerFacts(gpu_waits=waits, per_s=90.0 if end_s < ONSET_S else 40.0)
        where = Context("j1", 0, window, window.start_ns, roster, None)
        findings, memory = find_stragglers(facts, memory, where, StragglerOptions())
        named.append([finding.component for finding in findings])
    return named


def test_stage_without_peers_whose_receives_alone_wait_longer_than_before_is_named_while_they_do() -> None:
    named = follow_stages(lambda at_s, process: (at_s > ONSET_S) & (process == 2) & (at_s * 1e3 % 8 < 2))
    assert {part for parts in named for part in parts} == {"gpu:h2/0"}
    assert named[(60 - 6) // 2 :] == [["gpu:h2/0"]] * len(named[(60 - 6) // 2 :]), "its past is not that of the fault"


@pytest.mark.parametrize(
    "grown",
    [
        lambda at_s, process: np.zeros(len(at_s), bool),
        lambda at_s, process: (at_s > ONSET_S) & (at_s * 1e3 % 8 < 2),
        lambda at_s, process: (process == 2) & (at_s * 1e3 % 40 < 1.2),
        lambda at_s, process: (process == 2) & (np.abs(at_s - ONSET_S - 3) < 0.8),
    ],
    ids=["nobody", "everybody", "as before", "one pause"],
)
def test_slower_pipeline_accuses_no_stage(grown: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
    assert not any(follow_stages(grown))


def test_wait_is_the_ranks_own_on_both_sides_and_beside_gpu_times_receives_alone_are_read(store: Store) -> None:
    comms = [make(Comm, host=f"h{rank}", rank=rank, nranks=2, gpu=0) for rank in (0, 1)]
    sides = {("send", 0): 30, ("recv", 0): 2, ("send", 1): 47, ("recv", 1): 45}
    told = [
        make(Transfer, host=f"h{rank}", rank=rank, peer=1 - rank, direction=side, gpu_wait_ns=ms * MS, wire_ns=None)
        for (side, rank), ms in sides.items()
    ]
    insert(store, *told, *comms)
    window = Window(T0, T0 + 5 * SECOND)
    where = Context("j1", 0, window, T0, read_roster(store, "j1", 0), None)
    waits = read_gpu_waits(store, where, per_s=25.0)
    assert dict(zip(waits.process.tolist(), waits.own_ns.tolist(), strict=True)) == {0: 2.0 * MS, 1: 45.0 * MS}
    assert (waits.per_s, len(set(waits.operation.tolist()))) == (25.0, 1)
    insert(store, make(Collective, host="h0", rank=0, clock="gpu"))
    assert len(read_gpu_waits(store, where, per_s=25.0).process) == 0
