"""The service turns what collectors send into incidents, one analyzer at a time, and survives being replaced."""

import itertools
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from structlog.testing import capture_logs

from analyzer.pipeline import Followed, Judgement, Outcome, Who, evaluate_window
from analyzer.service import EMBEDDED_RANKS, AnalyzerService, ServiceOptions
from analyzer.windows.jobs import JobSpan, choose_followed
from analyzer.windows.window import Context, Window
from collector.nccl.budget import WHOLE_SHARE
from collector.nccl.detail import read_details
from lockstep import wire
from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.errors import ControlAway, LeaseLost, LockstepError
from lockstep.records import Agent, Comm, HostRecord, OpStat, PluginHealth
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import (
    Analysis,
    detail_requests_by_host,
    list_incidents,
    note_analysis,
    read_analysis,
    read_jobs,
)
from lockstep.state.leases import Lease, Shard, release_lease, take_lease
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from simulator.faults import parse_fault
from simulator.scenario import Scenario, parse_scenario
from tests.analyzer.cluster import Cluster
from tests.builders import SECOND, T0, make, rows
from tests.fixtures.control import hold_lease
from tests.tiers import long_except

NIC = "nic:h1/eth2"
SICK = parse_scenario(
    """
    summary = "16 ranks on 4 hosts; one NIC carries half its rate from second 5 on"
    duration_s = 55
    timeline = ["at 5 s fail nic:h1/eth2 to 50 %"]

    [cluster]
    hosts = 4
    gpus_per_host = 4
    nics_per_host = 4
    hosts_per_leaf = 2
    spines = 2
    nic_gbps = 200.0

    [job]
    compute_ms = 300.0
    allreduce_mb = [512]
    """,
    "small",
)
SHORT = SICK.model_copy(update={"duration_s": 25.0})
HEALING = SICK.model_copy(update={"timeline": (*SICK.timeline, parse_fault(f"at 20 s heal {NIC}"))})
Watch = Callable[[Scenario], Cluster]


@dataclass(frozen=True)
class Head:
    """A store and a control database, and services that look at jobs of one rank on one host."""

    store: Store
    control: ControlDatabase

    @property
    def lease(self) -> Lease:
        return hold_lease(self.control, "analyzer", now_ns=T0)

    def service(self, **options: Any) -> AnalyzerService:
        return AnalyzerService(self.store, self.control, None, ServiceOptions(**options))

    def put(self, table: str, *records: HostRecord) -> None:
        self.store.insert(TABLE_BY_NAME[table], rows(*records), token=f"{table} {records[0]}")

    def tell_of(self, *jobs: str) -> None:
        """Send a rank of each job, all on one host, and that the host has told all."""
        for job in jobs:
            self.put("comms", make(Comm, job=job))
            self.put("op_stats", make(OpStat, job=job))
        self.put("agents", make(Agent, ts_ns=after(90), watermark_ns=after(90)))


@pytest.fixture
def head(embedded_store: Store, control: ControlDatabase) -> Head:
    return Head(embedded_store, control)


@pytest.fixture
def watch(embedded_store: Store, control: ControlDatabase) -> Watch:
    return lambda scenario: Cluster(embedded_store, control, scenario)


def after(seconds: int) -> int:
    return T0 + seconds * NS_PER_S


def test_lasting_fault_is_one_incident_that_is_kept_up_to_date(watch: Watch) -> None:
    cluster = watch(SHORT)
    cluster.run(25)
    assert [incident.updated_ns for incident in cluster.told] == [after(15), after(20), after(25)]
    (incident,) = cluster.open
    assert {told.id for told in cluster.told} == {incident.id}
    assert (incident.verdict.component, incident.opened_ns, incident.updated_ns) == (NIC, after(15), after(25))
    assert incident.verdict.since_ns == after(5)


@pytest.mark.slow
def test_doubt_is_settled_a_second_after_it_arose_if_we_keep_up(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[tuple[int, bool]] = []

    def note(*args: Any, **told: Any) -> Outcome:  # Any: what an evaluation takes
        looks.append(((args[2].end_ns - T0) // NS_PER_S, told["is_early"]))
        return evaluate_window(*args, **told)

    monkeypatch.setattr("analyzer.service.evaluate_window", note)
    later = SICK.model_copy(update={"duration_s": 30.0, "timeline": (parse_fault(f"at 15 s fail {NIC} to 25 %"),)})
    cluster = Cluster(head.store, head.control, later, every_s=1)
    cluster.run(29)
    assert cluster.told[0].opened_ns == after(21), "what pairs used to need is known: no flow just met another"
    assert looks == [(5, False), (10, False), (15, False), (20, False), (21, True), (25, False)]
    steps = head.store.query("SELECT count() AS n, uniqExact(world_rank, step) AS steps FROM steps").to_pylist()
    assert steps[0]["n"] == steps[0]["steps"] > 0, "an early evaluation tells no step twice"


@pytest.mark.slow
def test_doubt_about_an_end_of_a_wire_asks_for_probes_and_a_dear_job_for_less(watch: Watch, head: Head) -> None:
    head.put("plugins", make(PluginHealth, job="dear", host="h9", ts_ns=after(3), dear=True))
    one_way = SICK.model_copy(update={"timeline": (parse_fault(f"at 5 s fail {NIC} tx to 25 %"),)})
    cluster = watch(one_way)
    cluster.run(15)
    (incident,) = cluster.open
    assert NIC in {incident.verdict.component, *incident.verdict.ambiguous_with}
    requests = detail_requests_by_host(cluster.control, cluster.clock.now_ns())
    assert [(request.kind, request.details["level"]) for request in requests.pop("h9")] == [("lower", "transfers")]
    asked = {(request.kind, request.details["src_nic"]) for found in requests.values() for request in found}
    assert ("probe", "eth2") in asked
    assert "h1" in requests, "through the suspected NIC, to somebody else"


@pytest.mark.slow
def test_slowdown_that_no_part_explains_asks_for_more_steps_of_all_ranks_at_once(watch: Watch) -> None:
    shared = SICK.cluster.model_copy(update={"hosts_per_leaf": 1})
    timeline = (parse_fault("at 15 s fail fabric to 10 %"),)
    cluster = watch(SICK.model_copy(update={"cluster": shared, "timeline": timeline, "duration_s": 45.0}))
    cluster.run(15)
    assert detail_requests_by_host(cluster.control, cluster.clock.now_ns()) == {}
    cluster.run(15)
    requests = detail_requests_by_host(cluster.control, cluster.clock.now_ns())
    assert sorted(requests) == ["h0", "h1", "h2", "h3"]
    details = [one for found in requests.values() for one in read_details(found, cluster.clock.now_ns())]
    assert all(one.target.means("train", rank) for one in details for rank in range(16))
    assert {(one.detail.level, one.detail.share / WHOLE_SHARE) for one in details} == {(wire.STEPS, 0.25)}
    assert cluster.told == [], "a part may still show itself"
    cluster.run(15)
    assert [incident.verdict.fault_class for incident in cluster.told[:1]] == ["global_slow"]


def test_nothing_is_analysed_before_all_hosts_have_reported(watch: Watch) -> None:
    cluster = watch(SHORT)
    cluster.introduce()
    cluster.lagging = {"h3"}
    cluster.run(15)
    assert (cluster.windows, cluster.told) == (0, [])
    assert read_jobs(cluster.control, 1) == {"train": after(0)}, "that it waits is told by job"
    cluster.lagging = set()
    cluster.beat()
    cluster.analyse()
    assert cluster.windows == 3, "all that became complete, in their order"
    assert read_jobs(cluster.control, 1) == {"train": after(15)}
    assert [incident.opened_ns for incident in cluster.open] == [after(15)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("heard_s", "is_introduced", "windows"),
    [
        pytest.param(5, False, (1, 5), id="fell silent"),
        pytest.param(0, True, (0, 4), id="has not spoken yet", marks=pytest.mark.long),
        pytest.param(0, False, (3, 4), id="only others know of it"),
    ],
)
def test_silent_host_lowers_the_coverage_and_is_waited_for_if_it_may_come_back(
    watch: Watch, heard_s: int, is_introduced: bool, windows: tuple[int, int]
) -> None:
    cluster = watch(SICK)
    cluster.run(heard_s)
    if is_introduced:
        cluster.introduce()
    cluster.silent = {"h3"}
    cluster.run(15)
    assert cluster.windows == windows[0]
    cluster.run(5)
    assert cluster.windows == windows[1]
    assert [(one.verdict.component, one.verdict.coverage) for one in cluster.open] == [(NIC, 0.75)]


@pytest.mark.slow
def test_analysis_that_is_behind_goes_on_with_the_newest_window_and_counts_the_others(watch: Watch) -> None:
    cluster = watch(SICK)
    cluster.run(10)
    for _ in range(7):
        cluster.send()
    cluster.analyse()
    assert (cluster.windows, cluster.service.skipped) == (2 + 1, 6)
    cluster.run(5)
    assert (cluster.windows, cluster.service.skipped) == (2 + 2, 6)
    assert [incident.verdict.component for incident in cluster.open] == [NIC]


@pytest.mark.slow
def test_new_job_whose_past_takes_too_long_is_evaluated_at_its_newest_window(watch: Watch) -> None:
    cluster = watch(SICK)
    for _ in range(8):
        cluster.send()
    seconds = itertools.count(step=20)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analyzer.service.monotonic_ns", lambda: next(seconds) * NS_PER_S)
        cluster.analyse()
        assert (cluster.windows, cluster.service.skipped) == (1, 0), "a turn takes twenty seconds"
        cluster.analyse()
    assert (cluster.windows, cluster.service.skipped) == (1 + 1, 6)


@pytest.mark.slow
def test_no_host_is_silent_because_the_analysis_was_away(watch: Watch) -> None:
    cluster = watch(SICK)
    cluster.run(10)
    cluster.silent = {"h3"}
    for _ in range(6):
        cluster.send()
    cluster.run(10)
    assert cluster.windows == 2, "what it sent meanwhile may not be in the store yet"
    cluster.run(5)
    cluster.wait(10)
    assert cluster.windows == 2 + 1, "it has had as long as any other"


@pytest.mark.slow
def test_job_that_ended_is_not_evaluated_until_it_is_forgotten(watch: Watch) -> None:
    cluster = watch(SICK.model_copy(update={"timeline": (), "duration_s": 15.0}))
    cluster.run(15)
    cluster.wait(20)
    evaluated = cluster.windows
    cluster.wait(30)
    assert cluster.windows == evaluated < 7
    assert cluster.told == []


@pytest.mark.slow
def test_fault_on_a_host_that_falls_silent_is_not_over(watch: Watch) -> None:
    cluster = watch(HEALING)
    cluster.run(15)
    (opened,) = cluster.open
    cluster.silent = {"h1"}
    cluster.run(30)
    assert cluster.windows == 9
    assert opened.id in {incident.id for incident in cluster.open}


@pytest.mark.slow
@pytest.mark.parametrize(
    "silent",
    long_except([{"h0", "h1"}], [{"h0", "h1", "h2", "h3"}, {"h1", "h2", "h3"}, {"h0", "h1"}]),
    ids=["all", "most", "leaf"],
)
def test_hosts_that_fall_silent_together_are_lost_telemetry_and_no_fault_ends(watch: Watch, silent: set[str]) -> None:
    cluster = watch(HEALING)
    cluster.run(15)
    (slow,) = cluster.open
    cluster.silent = silent
    cluster.run(20)
    named = {one.verdict.fault_class: one for one in cluster.open}
    assert named.keys() == {"comm_slow", "telemetry_lost"}
    lost, unseen = named["telemetry_lost"], named["comm_slow"]
    assert lost.verdict.component == ("switch:leaf0" if silent == {"h0", "h1"} else "job:train")
    assert (lost.verdict.grade, lost.verdict.impact.ranks_waiting, lost.unseen_since_ns) == ("alert", 0, None)
    assert lost.verdict.since_ns == pytest.approx(after(15), abs=SECOND // 10)
    assert (unseen.verdict, unseen.updated_ns) == (slow.verdict, after(35))
    assert unseen.unseen_since_ns == pytest.approx(after(15), abs=SECOND // 10)
    cluster.silent = set()
    cluster.run(20)
    assert {one.closed_because for one in list_incidents(cluster.control)} == {
        "its hosts report again",
        "the part has been normal again",
    }


@pytest.mark.slow
@pytest.mark.parametrize("stalled", long_except(["nccl_rings"], ["nccl_rings", "gpu"]))
def test_fault_on_a_host_of_whose_ranks_nothing_comes_says_what_is_missing(watch: Watch, stalled: str) -> None:
    """Also where its agent says that it has told all."""
    cluster = watch(HEALING)
    cluster.run(15)
    (slow,) = cluster.open
    cluster.stalled = {"h1": stalled}
    cluster.run(25)
    (unseen,) = cluster.open
    assert (unseen.id, unseen.verdict.last_seen_ns) == (slow.id, after(15))
    assert unseen.updated_ns == after(40), "nobody waits for it"
    assert (unseen.unseen_host, unseen.unseen_source) == ("h1", "nccl_rings" if stalled == "nccl_rings" else None)
    assert unseen.unseen_since_ns is not None
    assert after(15) - SECOND // 10 <= unseen.unseen_since_ns <= after(20)
    cluster.stalled = {}
    cluster.run(15)
    (closed,) = list_incidents(cluster.control)
    assert (closed.closed_because, closed.unseen_source) == ("the part has been normal again", None)


@pytest.mark.slow
@pytest.mark.parametrize("fate", ["stopped in order", "gateway died"])
def test_agents_that_say_goodbye_are_missed_by_nobody_and_a_dead_gateway_is_named(watch: Watch, fate: str) -> None:
    cluster = watch(SICK.model_copy(update={"timeline": ()}))
    hosts = {"h1", "h2", "h3"}
    cluster.gateways = {"h0": "east:8080"} | dict.fromkeys(hosts, "west:8080")
    cluster.run(15)
    if fate == "stopped in order":
        cluster.ended = hosts
        cluster.run(5)
    cluster.silent = hosts
    cluster.run(25)
    named = [one.verdict.component for one in cluster.open]
    assert named == ([] if fate == "stopped in order" else ["gateway:west:8080"])


@pytest.mark.slow
def test_job_that_pauses_keeps_its_incidents_and_one_that_ends_closes_them(watch: Watch) -> None:
    cluster = watch(SICK)
    cluster.run(15)
    (opened,) = cluster.open
    cluster.wait(25)
    assert cluster.windows == 8
    assert cluster.open == [opened.model_copy(update={"updated_ns": after(40)})], "evaluated, and not seen again"
    assert all(reported.verdict == opened.verdict for reported in cluster.told)
    cluster.clock.advance(85)
    cluster.wait(5)
    assert [still.verdict for still in cluster.open] == [opened.verdict], "its last rows are from two minutes ago"
    cluster.wait(10)
    (closed,) = list_incidents(cluster.control)
    assert (closed.id, closed.state, closed.closed_ns) == (opened.id, "closed", after(140))
    assert closed.closed_because == "no telemetry of the job since 2023-11-14 22:13:35 UTC"
    cluster.wait(5)
    assert cluster.told[-1] == closed
    assert [reported.state for reported in cluster.told].count("closed") == 1


@pytest.mark.slow
def test_restarted_service_goes_on_with_the_same_incident_and_closes_that_of_a_job_that_ended(watch: Watch) -> None:
    cluster = watch(SICK)
    cluster.run(15)
    (before,) = cluster.told
    cluster.restart()
    cluster.analyse()
    assert cluster.told == [before], "what was told before is not told again"
    cluster.run(5)
    (_, again) = cluster.told
    assert list_incidents(cluster.control) == [again]
    assert (again.id, again.state, again.updated_ns) == (before.id, "open", after(20))
    assert (again.opened_ns, again.verdict.since_ns) == (before.opened_ns, before.verdict.since_ns)
    assert again.verdict.impact.step_time_ratio == pytest.approx(before.verdict.impact.step_time_ratio, rel=0.1)
    cluster.restart()
    cluster.clock.advance(3600)
    cluster.analyse()
    (closed,) = list_incidents(cluster.control)
    assert (closed.state, closed.closed_ns) == ("closed", after(3620))


@pytest.mark.slow
def test_restarted_service_closes_what_has_healed_and_opens_nothing_again(watch: Watch) -> None:
    cluster = watch(HEALING)
    cluster.run(20)
    cluster.restart()
    cluster.run(15)
    (closed,) = list_incidents(cluster.control)
    assert closed.state == "closed"
    told = list(cluster.told)
    cluster.restart()
    cluster.run(10)
    assert (cluster.told, list_incidents(cluster.control)) == (told, [closed])


@pytest.mark.slow
def test_service_that_gets_the_lease_back_knows_what_happened_meanwhile(watch: Watch) -> None:
    """The second service closes the incident that the first still remembers as open."""
    cluster = watch(HEALING)
    cluster.run(15)
    first = cluster.service
    release_lease(cluster.control, cluster.lease)
    cluster.holder = "second"
    cluster.restart()
    cluster.run(20)
    (closed,) = list_incidents(cluster.control)
    assert closed.state == "closed"
    release_lease(cluster.control, cluster.lease)
    cluster.holder, cluster.service = "first", first
    told = list(cluster.told)
    cluster.run(5)
    assert (cluster.told, list_incidents(cluster.control)) == (told, [closed])


def test_stale_lease_is_refused_and_nothing_is_announced(watch: Watch) -> None:
    cluster = watch(SHORT)
    cluster.run(10)
    stale = cluster.lease
    cluster.send()
    assert take_lease(cluster.control, "analyzer", "second", 15 * NS_PER_S, stale.expires_ns)
    with pytest.raises(LeaseLost, match="second has it now"):
        cluster.service.run_once(stale, cluster.clock.now_ns())
    assert cluster.told == list_incidents(cluster.control) == []


@pytest.mark.slow
def test_window_whose_incidents_could_not_be_saved_is_analysed_again(watch: Watch) -> None:
    cluster = watch(HEALING)
    for timestamp_s, state in ((15, "open"), (35, "closed")):
        cluster.run(timestamp_s - 5 - cluster.windows * 5)
        cluster.send()
        told = list(cluster.told)
        _analyse_in_vain(cluster)
        assert cluster.told == told
        cluster.analyse()
        assert [incident.state for incident in list_incidents(cluster.control)] == [state]


def test_fault_of_one_window_is_not_confirmed_by_analysing_it_twice(watch: Watch) -> None:
    """A second fault is seen once in a window that has to be repeated, because the first could not be saved."""
    short = [parse_fault("at 10 s fail nic:h3/eth1 to 50 % for 5 s")]
    cluster = watch(SICK.model_copy(update={"timeline": (*SICK.timeline, *short), "duration_s": 20.0}))
    cluster.run(10)
    cluster.send()
    _analyse_in_vain(cluster)
    cluster.run(5)
    assert {incident.verdict.component for incident in list_incidents(cluster.control)} == {NIC}


def _analyse_in_vain(cluster: Cluster) -> None:
    def fail(*_: object) -> None:
        raise ControlAway("the control database is away")

    with pytest.MonkeyPatch.context() as broken:
        broken.setattr("analyzer.service.save_incidents", fail)
        with pytest.raises(ControlAway):
            cluster.analyse()


@pytest.mark.parametrize(("ranks", "warned"), [(EMBEDDED_RANKS, False), (EMBEDDED_RANKS + 1, True)])
def test_job_too_large_for_the_embedded_store_is_said_to_be_so_once(head: Head, ranks: int, warned: bool) -> None:
    head.put("comms", make(Comm, nranks=ranks))
    head.put("op_stats", make(OpStat))
    service = head.service()
    with capture_logs() as lines:
        for _ in range(2):
            service.run_once(head.lease, T0 + NS_PER_S)
    assert [line["ranks"] for line in lines] == ([ranks] if warned else [])


class Spoilt:
    """Stands for the evaluation of a window, and finds nothing; of one job it fails or takes long. Counts by job."""

    def __init__(self, job: str, error: Exception | None = None, takes_s: int = 0) -> None:
        self.counts: Counter[str] = Counter()
        self._job, self._error, self._takes_s = job, error, takes_s
        self._spent = threading.local()

    def thread_time_ns(self) -> int:
        return int(getattr(self._spent, "ns", 0))

    def evaluate_window(
        self, _: Store, span: JobSpan, window: Window, known: Followed, who: Who, *__: object, **___: object
    ) -> Outcome:
        self.counts[span.job] += 1
        if span.job == self._job:
            self._spent.ns = self._takes_s * NS_PER_S
            if self._error:
                raise self._error
        roster, silent, reports, topology = who
        context = Context(span.job, span.attempt, window, window.start_ns, roster, topology, silent, reports=reports)
        steps = schema_of(TABLE_BY_NAME["steps"]).empty_table()
        return Outcome(known, [], Judgement((), steps), context)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("analyzer.service.evaluate_window", self.evaluate_window)
            patch.setattr("analyzer.service.thread_time_ns", self.thread_time_ns)
            yield

    def run_for(self, seconds: int, lease: Lease, service: AnalyzerService) -> str:
        """Run a service once a second; return why the last run failed, empty where it did not."""
        trouble = ""
        with self.in_place():
            for second in range(4, seconds + 4):
                try:
                    service.run_once(lease, after(second))
                    trouble = ""
                except LockstepError as error:
                    trouble = str(error)
        return trouble


def test_job_that_cannot_be_evaluated_rests_longer_each_time_and_holds_up_no_other(head: Head) -> None:
    head.tell_of("a", "poisoned", "z")
    spoilt = Spoilt("poisoned", MemoryError("32 GiB"))
    with capture_logs() as lines:
        trouble = spoilt.run_for(15, head.lease, head.service())
    assert trouble == "1 of 3 jobs cannot be evaluated: poisoned (MemoryError: 32 GiB)"
    assert spoilt.counts["a"] == spoilt.counts["z"] > spoilt.counts["poisoned"] == 4, "after 2, 4 and 8 s"
    assert [line["event"] for line in lines] == ["job cannot be evaluated"], "said once"
    assert read_analysis(head.control) == Analysis(after(18), 0), "the others are not behind"


def test_job_over_its_budget_shares_with_others_and_has_all_where_there_are_none(head: Head) -> None:
    head.tell_of("slow")
    alone, shared, grown = (Spoilt("slow", takes_s=5) for _ in range(3))
    alone.run_for(10, head.lease, head.service())
    head.tell_of("a", "b")
    assert shared.run_for(10, head.lease, head.service()) == ""
    assert alone.counts["slow"] == shared.counts["a"] == shared.counts["b"] > 3
    assert shared.counts["slow"] == 1, "then it rests 5 s for each of the others"
    many = [(rank, f"g{rank}") for rank in range(20)]
    head.put("comms", *(make(Comm, job="slow", comm=7, rank=rank, nranks=21, host=host) for rank, host in many))
    head.put("agents", *(make(Agent, host=host, ts_ns=after(90), watermark_ns=after(90)) for _, host in many))
    assert grown.run_for(10, head.lease, head.service()) == ""
    assert grown.counts["slow"] == grown.counts["a"], "on 21 hosts it rests half a second for two of one"


def test_analyzers_that_share_the_jobs_follow_each_of_them_once(head: Head) -> None:
    jobs, control = {f"job{number}" for number in range(12)}, head.control
    head.tell_of(*jobs)
    counts = []
    for shard in Shard.all_of(3):
        whole = Spoilt("")
        whole.run_for(6, head.lease, head.service(shard=shard))
        counts.append(whole.counts)
        assert set(read_jobs(control, 12)) == {job for count in counts for job in count}, "it forgets no other's"
    assert sorted(job for count in counts for job in count) == sorted(jobs)
    assert all(counts), "and none is idle"
    note_analysis(control, Analysis(after(2), skipped=4), Shard(1, 3))
    assert read_analysis(control) == Analysis(after(2), 4), "all are as far as the last of them"
    with Spoilt("").in_place():
        head.service().run_once(head.lease, after(12))
    assert read_analysis(control) == Analysis(after(12), 0), "those that there are no more hold up nobody"


def test_job_in_which_nothing_is_wrong_has_its_newest_evaluation_where_rounds_take_long(head: Head) -> None:
    head.tell_of("a")
    service = head.service()
    with Spoilt("").in_place():
        counts = [service.run_once(head.lease, after(second)) for second in (10, 12, 14, 20, 22)]
    assert counts[1:] == [1, 1, 1, 1]
    assert read_analysis(head.control) == Analysis(after(22), skipped=2), "of three that were due at 20 s"


def test_host_that_invents_jobs_has_its_fill_and_holds_back_no_job_that_runs_elsewhere_too() -> None:
    invented = {(f"job{number}", 1): frozenset({"h0"}) for number in range(1_000)}
    real = {("train", 1): frozenset({"h0", "h1"}), ("silent", 1): frozenset[str]()}
    followed = choose_followed(invented | real)
    assert followed == [*list(invented)[:64], *real]


def test_service_that_is_stopped_in_the_midst_asks_no_more_and_its_evaluations_are_due_again(head: Head) -> None:
    head.tell_of("a", "b")
    begun, ended = list[str](), list[str]()

    def stop_and_evaluate(store: Store, span: JobSpan, *args: Any, **options: Any) -> Outcome:
        begun.append(span.job)
        service.stop()
        outcome = evaluate_window(store, span, *args, **options)
        ended.append(span.job)
        return outcome

    service = head.service()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("analyzer.service.evaluate_window", stop_and_evaluate)
        assert service.run_once(head.lease, after(4)) == 0
    assert (begun, ended) == (["a", "b"], []), "each ends where it would ask the store"
    assert head.service().run_once(head.lease, after(4)) > 0


def test_service_that_is_stopped_begins_no_more_evaluations(watch: Watch) -> None:
    cluster = watch(SHORT)
    for _ in range(3):
        cluster.send()
    cluster.service.stop()
    cluster.analyse()
    assert cluster.windows == 0
    cluster.restart()
    cluster.analyse()
    assert cluster.windows == 3, "what was due still is"
