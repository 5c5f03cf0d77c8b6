"""A capture gets the best answer that its tables allow, and hostile rows get silence, never a crash."""

from collections.abc import Iterable

import pyarrow.compute as pc
import pytest

from analyzer.diagnosis import describe, diagnose
from analyzer.pipeline import FollowOptions
from benchmarks.accuracy_run import examine
from benchmarks.accuracy_score import Case
from benchmarks.accuracy_worlds import draw_world
from lockstep.fabrics import leaf_spine
from lockstep.records import Agent, Collective, Comm, HostRecord, OpStat, Probe, Step, Transfer
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from lockstep.verdict import Incident
from simulator.scenario import build_topology, parse_scenario
from tests.builders import SECOND, T0, make, rows
from tests.simulated import JOB, Delivery, load, tell, told_step
from tests.tiers import long_except

FABRIC = TopologyIndex(leaf_spine(hosts=8, nics_per_host=1, leaves=4, spines=2))
HUNG = parse_scenario(
    """
    summary = "16 ranks on 4 hosts; one never comes back"
    duration_s = 20
    timeline = ["at 6 s fail rank:6 absent"]

    [cluster]
    hosts = 4
    gpus_per_host = 4
    nics_per_host = 2
    hosts_per_leaf = 2
    spines = 2
    nic_gbps = 200.0

    [job]
    compute_ms = 300.0
    allreduce_mb = [512]
    """,
    "hung",
)


SAMPLED = """
    summary = "12 ranks on 12 hosts, {job}; one GPU is slow at the end"
    duration_s = {duration}
    timeline = ["at 7 s fail gpu:h1/0 to 55 %"]
    cluster = {{ hosts = 12, gpus_per_host = 1, nics_per_host = 1, hosts_per_leaf = 3, spines = 2, nic_gbps = 25.0 }}
    telemetry = {{ sample = 0.05 }}

    [job]
    {job}
"""
PIPELINE = (
    "layout = { pp = 2 }\nmicro_batches = 6\n"
    "step = [{ do = 'pipeline', ms = 20.0, backward_ms = 40.0, mb = 8 }, { do = 'AllReduce', mb = 9, group = 'dp' }]"
)


def put(store: Store, table: str, records: Iterable[HostRecord]) -> None:
    store.insert(TABLE_BY_NAME[table], rows(*records), token=f"test/{table}")


def put_scenario(store: Store, *tables: str) -> None:
    (delivery,) = tell(HUNG, 31, every_s=20)
    for table in tables:
        store.insert(TABLE_BY_NAME[table], delivery.rows[table], token=f"test/{table}")


def said(store: Store, topology: TopologyIndex | None = None) -> list[Incident]:
    return diagnose(store, topology, FollowOptions(), "captured")


def steps(lengths_s: Iterable[float]) -> list[Step]:
    told: list[Step] = []
    for number, length_s in enumerate(lengths_s):
        before_s = (told[-1].end_ns - T0) / SECOND if told else 0.0
        told.append(told_step(number, before_s, length_s * (1 + 0.01 * (number % 3 - 1))))
    return told


def probe(src: int, dst: int, number: int, *, spine: int, is_lost: bool) -> Probe:
    told = {"rtt_ns": None if is_lost else 20_000, "hops": [f"leaf{src // 2}", f"spine{spine}", f"leaf{dst // 2}"]}
    return make(Probe, host=f"h{src}", ts_ns=T0 + number, dst=f"h{dst}", sport=1_000 + number % 60_000, **told)


OFTEN = "compute_ms = 60.0\nallreduce_mb = [64]"


@pytest.mark.parametrize("case", long_except([(PIPELINE, 11)], [(OFTEN, 14), (PIPELINE, 14), (PIPELINE, 11)]))
def test_slow_gpu_is_named_from_seconds_of_few_operations(embedded_store: Store, case: tuple[str, int]) -> None:
    """Also when steps are shorter than a second, sends and receives overlap, and nothing is told twice."""
    job, duration = case
    text = SAMPLED.replace("{job}", "many", 1).format(job=job, duration=duration)
    scenario = parse_scenario(text, "sampled")
    load(embedded_store, tell(scenario, 3, every_s=duration))
    (incident,) = said(embedded_store, TopologyIndex(build_topology(scenario.cluster)))
    assert incident.verdict.component in ("gpu:h1/0", "host:h1")


def test_few_steps_after_a_restart_accuse_nobody_who_was_late_in_some_of_them() -> None:
    """Ten steps of the new attempt, unevenly long: one evaluation is all that there is room for."""
    world = draw_world(2203, 34)
    assert (world.kind, [fault.effect for fault in world.scenario.timeline]) == ("healthy", ["restart"])
    assert examine(Case(world.kind, ranks=16, seed=2203, world=34))["named"] == []


def test_with_only_steps_the_answer_is_when_the_job_slowed_and_recovered(embedded_store: Store) -> None:
    put(embedded_store, "steps", steps([0.5] * 60 + [0.8] * 40 + [0.5] * 60))
    (incident,) = said(embedded_store)
    assert (incident.verdict.fault_class, incident.verdict.component) == ("global_slow", f"job:{JOB}")
    assert abs(incident.verdict.since_ns - (T0 + 30 * SECOND)) <= 2 * SECOND
    assert incident.state == "closed"
    assert abs((incident.closed_ns or 0) - (T0 + 62 * SECOND)) <= 3 * SECOND


@pytest.mark.slow
def test_job_with_long_steps_is_evaluated_twice_a_step_once_they_are_known(embedded_store: Store) -> None:
    changes = {"duration_s": 300, "timeline": (), "job": HUNG.job.model_copy(update={"compute_ms": 20_000.0})}
    (delivery,) = tell(HUNG.model_copy(update=changes), 31, every_s=300)
    for table, told in delivery.rows.items():
        embedded_store.insert(TABLE_BY_NAME[table], told, token=f"test/{table}")
    done: list[tuple[int, int]] = []
    assert not describe(embedded_store, None, FollowOptions(), watch=lambda *counts: done.append(counts)).incidents
    assert done[-1][0] == done[-1][1] >= 140, "the end is always evaluated"
    assert len(done) <= 60


def test_with_only_probes_the_answer_is_which_links(embedded_store: Store) -> None:
    pairs = [(src, dst) for src in range(8) for dst in range(8) if src // 2 != dst // 2]
    told = [
        probe(src, dst, 10_000 * (src * 8 + dst) + number, spine=number % 2, is_lost=is_bad(src, number))
        for src, dst in pairs
        for number in range(40)
    ]
    put(embedded_store, "probes", told)
    (incident,) = said(embedded_store, FABRIC)
    assert (incident.verdict.component, incident.job) == ("link:leaf1--spine1", "captured")


def is_bad(src: int, number: int) -> bool:
    """Return whether a probe is lost: a quarter of those that leave leaf 1 for spine 1."""
    return src // 2 == 1 and number % 2 == 1 and number % 8 == 1


def test_with_only_progress_the_answer_is_who_hangs(embedded_store: Store) -> None:
    put_scenario(embedded_store, "comms", "progress")
    (incident,) = said(embedded_store)
    assert (incident.verdict.fault_class, incident.verdict.component) == ("noncomm_hang", "host:h1")


def test_hosts_whose_capture_ends_a_moment_earlier_are_not_gone(embedded_store: Store) -> None:
    """A job that hangs is recorded; its hosts end within a second of one another, and say last how far they got."""
    (delivery,) = tell(HUNG, 31, every_s=20)
    short = {name: delivery.rows[name] for name in ("comms", "progress")}
    short["progress"] = short["progress"].filter(pc.field("ts_ns") <= T0 + 10 * SECOND)
    load(embedded_store, [Delivery(short, T0)])
    ends = {f"h{number}": T0 + 10 * SECOND - number * SECOND // 4 for number in range(4)}
    last_ns = T0 + 11 * SECOND
    put(
        embedded_store,
        "agents",
        [make(Agent, host=host, ts_ns=last_ns, watermark_ns=ns) for host, ns in ends.items()],
    )
    (incident,) = said(embedded_store)
    assert (incident.verdict.fault_class, incident.verdict.component) == ("noncomm_hang", "host:h1")
    assert incident.verdict.coverage == 1.0


def test_hosts_behind_one_switch_that_fall_silent_together_did_not_crash(embedded_store: Store) -> None:
    (delivery,) = tell(HUNG, 31, every_s=20)
    lost, since_ns = ["h2", "h3"], T0 + 9 * SECOND
    heard = (pc.field("ts_ns") <= since_ns) | ~pc.field("host").isin(lost)
    rows_of = {"comms": delivery.rows["comms"], "progress": delivery.rows["progress"].filter(heard)}
    load(embedded_store, [Delivery(rows_of, T0)])
    ends = {f"h{number}": 9 if f"h{number}" in lost else 20 for number in range(4)}
    beats = [(host, T0 + second * SECOND) for host, last in ends.items() for second in range(1, last + 1)]
    put(embedded_store, "agents", [make(Agent, host=host, ts_ns=ns, watermark_ns=ns) for host, ns in beats])
    topology = TopologyIndex(build_topology(HUNG.cluster))
    found = {(one.verdict.fault_class, one.verdict.component) for one in said(embedded_store, topology)}
    assert found == {("noncomm_hang", "host:h1"), ("telemetry_lost", "switch:leaf1")}


def test_report_shows_matrix_step_times_and_progress(embedded_store: Store) -> None:
    put_scenario(embedded_store, "comms", "collectives", "transfer_stats", "op_stats", "connections")
    described = describe(embedded_store, TopologyIndex(build_topology(HUNG.cluster)), FollowOptions())
    assert described.matrix is not None
    assert len(described.step_times) > 10
    assert {round(seconds, 1) for _, seconds in described.step_times} == {0.3}
    put_scenario(embedded_store, "comms", "op_stats")
    told: list[tuple[int, int]] = []
    describe(embedded_store, None, FollowOptions(), watch=lambda done, due: told.append((done, due)))
    assert told[-1][0] == told[-1][1] == len(told) > 3


HOSTILE: dict[str, list[HostRecord]] = {
    "nothing": [],
    "one rank": [make(Comm, nranks=1), make(Collective), make(OpStat)],
    "zero durations": [make(Comm), *(make(Collective, rank=rank, start_ns=T0, end_ns=T0) for rank in range(4))],
    "ends before it starts": [make(Comm), *(make(Collective, rank=rank, end_ns=T0 - SECOND) for rank in range(4))],
    "no communicator": [make(Collective, rank=rank) for rank in range(4)],
    "no times": [make(Comm), *(make(Collective, rank=rank, start_ns=None, end_ns=None) for rank in range(4))],
    "a clock of 1970": [make(Comm), *(make(Collective, rank=rank, enqueue_ns=rank, start_ns=1) for rank in range(4))],
    "transfers without bytes": [make(Comm), *(make(Transfer, rank=rank, bytes=0) for rank in range(4))],
    "to itself": [make(Comm), *(make(Transfer, rank=1, peer=1) for _ in range(4))],
    "everything twice": [make(Comm), make(Comm), *(make(Collective, rank=1, seq=seq // 2) for seq in range(40))],
}
_TABLES = {Comm: "comms", Collective: "collectives", OpStat: "op_stats", Transfer: "transfers"}


@pytest.mark.parametrize(
    "name", long_except(["no times", "ends before it starts", "a clock of 1970", "everything twice"], HOSTILE)
)
def test_hostile_rows_are_passed_over_in_silence(embedded_store: Store, name: str) -> None:
    for kind, table in _TABLES.items():
        records = [record for record in HOSTILE[name] if type(record) is kind]
        if records:
            put(embedded_store, table, records)
    assert said(embedded_store, FABRIC) == []
