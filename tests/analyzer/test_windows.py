"""A window closes when everybody has sent it and reaches back over enough steps; a roster knows each process once."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from analyzer.windows.jobs import NOBODY, Roster, build_roster
from analyzer.windows.outage import find_outages, name_outage
from analyzer.windows.silence import Closing, HostReport, find_reports, find_silent, judge_window
from analyzer.windows.window import EvaluationOptions, Window, plan_evaluations, window_at
from lockstep.fabrics import leaf_spine
from lockstep.records import Agent, ClockQuality
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import TopologyIndex
from tests.analyzer.looking import MEMBER, look
from tests.builders import SECOND, T0, make, rows

HOSTS = frozenset({"h0", "h1"})
NOW, SILENCE = 100, 50
COMPLETE = HostReport(watermark_ns=10, last_seen_ns=NOW)
LAGGING = HostReport(watermark_ns=9, last_seen_ns=NOW - SILENCE, interval_ns=1)
SILENT = HostReport(watermark_ns=9, last_seen_ns=NOW - SILENCE - 1, interval_ns=1)
SELDOM = HostReport(watermark_ns=9, last_seen_ns=NOW - SILENCE - 1, interval_ns=SILENCE)
STALLED = HostReport(watermark_ns=20, last_seen_ns=NOW, stalled={"nccl_rings": 9})
GPU_STALLED = HostReport(watermark_ns=20, last_seen_ns=NOW, stalled={"gpu": 9})
ENDED = HostReport(watermark_ns=9, last_seen_ns=NOW, has_ended=True)
STANDING = HostReport(watermark_ns=1, last_seen_ns=NOW, lag_ns=2 * SILENCE + 1)
UNSURE = HostReport(watermark_ns=9, last_seen_ns=NOW - SILENCE - 1, interval_ns=1, error_ns=1)


LATE = HostReport(watermark_ns=10, last_seen_ns=0)  # silent after it sent everything
REPORTS: dict[str, tuple[dict[str, HostReport], bool, set[str]]] = {  # and whether it closes, and who is silent
    "all complete": ({"h0": COMPLETE, "h1": COMPLETE}, True, set()),
    "one lags": ({"h0": COMPLETE, "h1": LAGGING}, False, set()),
    "one silent": ({"h0": COMPLETE, "h1": SILENT}, True, {"h1"}),
    "one reports seldom": ({"h0": COMPLETE, "h1": SELDOM}, False, set()),
    "one has a poor clock": ({"h0": COMPLETE, "h1": UNSURE}, False, set()),
    "one without readings of ranks": ({"h0": COMPLETE, "h1": STALLED}, True, {"h1"}),
    "one without readings of GPUs": ({"h0": COMPLETE, "h1": GPU_STALLED}, True, set()),
    "one that ended in order": ({"h0": COMPLETE, "h1": ENDED}, True, {"h1"}),
    "one whose watermark stands": ({"h0": COMPLETE, "h1": STANDING}, True, {"h1"}),
    "one without a report": ({"h0": COMPLETE}, True, {"h1"}),
    "one silent after it sent everything": ({"h0": COMPLETE, "h1": LATE}, True, set()),
    "all silent": ({"h0": SILENT, "h1": SILENT}, True, {"h0", "h1"}),
    "no reports": ({}, False, {"h0", "h1"}),
    "one silent, one lags": ({"h0": SILENT, "h1": LAGGING}, False, {"h0"}),
    "another job's host lags": ({"h0": COMPLETE, "h1": COMPLETE, "h2": LAGGING}, True, set()),
}


@pytest.mark.parametrize("case", REPORTS)
def test_window_closes_when_every_host_has_sent_up_to_its_end_or_is_silent(case: str) -> None:
    reports, closed, silent = REPORTS[case]
    assert judge_window(10, HOSTS, reports, NOW, SILENCE) == Closing(closed=closed, silent=frozenset(silent))
    assert not judge_window(10, frozenset(), reports, NOW, SILENCE).closed, "a job without hosts"


@given(
    early_s=st.lists(st.floats(0, 1), min_size=2, max_size=9),
    interval_s=st.floats(0.5, 30),
    offset_s=st.floats(-60, 60),
    end_s=st.floats(0, 10),
)
def test_hosts_that_end_within_a_second_take_part_and_one_that_missed_several_reports_does_not(
    early_s: list[float], interval_s: float, offset_s: float, end_s: float
) -> None:
    """However often they report, whatever their clocks show, and wherever the evaluation ends."""
    interval_ns, offset_ns = round(interval_s * SECOND), round(offset_s * SECOND)
    ends = {f"h{number}": T0 - round(early * SECOND) for number, early in enumerate(early_s)}
    reports = {host: HostReport(ns, ns, interval_ns) for host, ns in ends.items()}
    gone_ns = min(ends.values()) - 3 * interval_ns - 1
    for host, reach_ns in (("skewed", T0), ("gone", gone_ns)):
        reports[host] = HostReport(reach_ns + offset_ns, reach_ns + offset_ns, interval_ns, offset_ns)
    assert find_silent(reports, reports, T0 + round(end_s * SECOND)) == {"gone"}
    assert find_silent(reports, reports, gone_ns) == set(), "it was there then"
    assert find_silent([*reports, "mute"], reports, gone_ns) == {"mute"}
    assert find_silent(reports, {}, T0) == set(), "a capture without reports"


def test_rhythm_of_a_host_is_that_of_its_reports_and_its_clock_is_known_as_it_told(store: Store) -> None:
    told = [0, 5, 10, 15, 95, 100]  # away in between
    store.insert(
        TABLE_BY_NAME["agents"],
        rows(
            *(make(Agent, host="h0", ts_ns=T0 + at_s * SECOND, watermark_ns=T0 + at_s * SECOND - 1) for at_s in told),
            make(Agent, host="h1", ts_ns=T0 - 1, watermark_ns=T0 - 2, stalled={"gpu": 5}),
            make(Agent, host="h1", ts_ns=T0, watermark_ns=T0 - 1, ended=True, gateway="east", stalled={"links": 7}),
        ),
        token="agents",
    )
    clock = ClockQuality(host="h1", ts_ns=T0, offset_ns=-7, error_ns=3, source="ntp")
    store.insert(TABLE_BY_NAME["clocks"], rows(clock), token="clocks")
    reports = find_reports(store, ["h0", "h1", "h2"], 0)
    assert reports == {
        "h0": HostReport(T0 + 100 * SECOND - 1, T0 + 100 * SECOND, interval_ns=5 * SECOND, lag_ns=1),
        "h1": HostReport(T0 - 1, T0, 1, -7, 3, has_ended=True, gateway="east", stalled={"links": 7}, lag_ns=1),
    }


ENDS: dict[str, tuple[dict[int, float], list[str]]] = {  # which hosts end when, and what is lost
    "most": ({3: 0, 2: 0.4, 0: 0.9, 1: 0, 5: 1}, ["job:train"]),
    "behind one switch": ({2: 0, 3: 1.5}, ["switch:leaf1"]),
    "behind two": ({0: 0, 1: 0, 6: 0.2, 7: 1}, ["switch:leaf0", "switch:leaf3"]),
    "behind one and elsewhere": ({0: 0, 1: 0, 6: 0.2}, []),
    "one": ({3: 0}, []),
    "behind different ones": ({3: 0, 4: 0.5}, []),
    "not together": ({2: 0, 3: 4}, []),
    "one by one": ({number: 4 * number for number in range(6)}, []),
}


@pytest.mark.parametrize("case", ENDS)
def test_telemetry_of_hosts_that_fall_silent_together_is_lost(case: str) -> None:
    ends_s, components = ENDS[case]
    ends = {f"h{number}": T0 + round(end_s * SECOND) for number, end_s in ends_s.items()}
    reports = {host: HostReport(ns, ns, interval_ns=SECOND) for host, ns in ends.items()}
    fabric = TopologyIndex(leaf_spine(hosts=8, nics_per_host=1, leaves=4, spines=2))
    context = replace(look(9, silent=ends), reports=reports, topology=fabric)
    outages = find_outages(context)
    assert [(outage.component, *outage.others) for outage in outages] == [(component,) for component in components]
    assert find_outages(replace(context, reports={})) == [], "hosts that never reported were never lost"
    stalled = {host: replace(report, stalled={"nccl_rings": report.watermark_ns}) for host, report in reports.items()}
    for finding in (name_outage(outage, replace(context, reports=stalled)) for outage in outages):
        assert finding.reason.startswith(f"no readings from nccl_rings on {finding.evidence[0]['count']} of 8 hosts")
    ended = {host: replace(report, has_ended=True) for host, report in reports.items()}
    assert find_outages(replace(context, reports=ended)) == [], "they said so"
    for finding in (name_outage(outage, context) for outage in outages):
        assert finding.since_ns == max(ends[host] for host in finding.evidence[0]["hosts"])


OPTIONS = EvaluationOptions()


def test_evaluations_are_due_every_hop_and_the_same_ones_on_a_second_run() -> None:
    assert plan_evaluations(T0, T0 + 5 * SECOND, OPTIONS) == [T0 + 2 * SECOND, T0 + 4 * SECOND]
    assert plan_evaluations(T0 + 1, T0 + 4 * SECOND, OPTIONS) == [T0 + 2 * SECOND, T0 + 4 * SECOND]
    assert plan_evaluations(T0, T0 + SECOND, OPTIONS) == []
    assert window_at(T0 + 2 * SECOND, T0 + SECOND, None, OPTIONS) == Window(T0 + SECOND, T0 + 2 * SECOND)


@pytest.mark.parametrize(
    ("period_s", "length_s"),
    [(None, 6), (0.5, 6), (4.2, 13), (300, 120)],
    ids=["not known yet", "fast steps", "slow steps, in whole seconds", "at most two minutes"],
)
def test_look_reaches_back_over_three_periods(period_s: float | None, length_s: int) -> None:
    period_ns = None if period_s is None else int(period_s * SECOND)
    end_ns = T0 + 1_000 * SECOND
    assert window_at(end_ns, T0, period_ns, OPTIONS) == Window(end_ns - length_s * SECOND, end_ns)


WORLD, PAIR = 2**63 + 5, 7


def member(comm: int, rank: int, host: str, world_rank: int | None, **fields: object) -> dict[str, object]:
    usual = {"nranks": 4, "nnodes": 2, "pid": 100 + rank, "gpu": rank % 2, "init_ns": 5}
    return {"comm": comm, "rank": rank, "host": host, "world_rank": world_rank, **usual, **fields}


def roster(*rows: dict[str, object]) -> Roster:
    return build_roster(pa.Table.from_pylist(list(rows), schema=MEMBER))


def find(known: Roster, comm: int, rank: int) -> int:
    return int(known.find(np.array([comm], np.uint64), np.array([rank]))[0])


def test_process_is_counted_once_whatever_tells_of_it() -> None:
    known = roster(
        *(member(WORLD, rank, f"h{rank // 2}", rank) for rank in range(4)), member(PAIR, 0, "h1", 3, gpu=1)
    )
    assert (len(known), known.ranks, known.nodes, known.hosts) == (4, 4, 2, frozenset({"h0", "h1"}))
    assert find(known, PAIR, 0) == find(known, WORLD, 3) == 3
    assert known.process(3).gpu_name == "gpu:h1/1"
    known = roster(member(WORLD, 0, "h0", None), member(WORLD, 1, "h1", None), member(PAIR, 0, "h0", None))
    assert len(known) == 2
    assert find(known, PAIR, 0) == find(known, WORLD, 0)
    known = roster(*(member(WORLD, rank, "h0", rank) for rank in range(4)), member(PAIR, 0, "h0", 3))
    comms, ranks = known.seats([3])
    assert sorted(zip(comms.tolist(), ranks.tolist(), strict=True)) == [(PAIR, 0), (WORLD, 3)]


AGAIN = WORLD + 1


def test_a_rank_belongs_to_the_host_that_claimed_it_first_and_moves_with_the_whole_job_only() -> None:
    job = [member(WORLD, rank, f"h{rank // 2}", rank) for rank in range(4)]
    known = roster(*job, member(WORLD, 3, "h9", 3, init_ns=9))
    assert known.process(find(known, WORLD, 3)).host == "h1"
    for init_ns in (0, 9):  # said to be older or newer
        known = roster(*job, *(member(PAIR, rank, "h9", rank, init_ns=init_ns) for rank in range(4)))
        hosts = [known.process(find(known, comm, 3)).host for comm in (WORLD, PAIR)]
        assert (hosts, len(known)) == (["h1", "h9"], 8), "what h9 says of its communicator is about h9"
    again = [member(AGAIN, rank, f"h{rank // 2 + 2}", rank, init_ns=9) for rank in range(4)]
    known = roster(*job, *again, member(PAIR, 0, "h3", 3, init_ns=10))
    assert (len(known), known.hosts) == (4, frozenset({"h2", "h3"}))
    assert find(known, WORLD, 3) == find(known, AGAIN, 3) == find(known, PAIR, 0)


def test_unknown_ranks_are_nobody_and_so_is_everybody_without_communicators() -> None:
    known = roster(member(WORLD, 1, "h0", 1))
    assert [find(known, WORLD, 0), find(known, WORLD, -1), find(known, PAIR, 1)] == [NOBODY] * 3
    assert known.members(WORLD).tolist() == [0]
    assert known.ranks == 4, "its communicator counts four"
    known = roster(member(WORLD, 1, "h0", 1), member(WORLD, 2**32 - 1, "h1", None, pid=1))
    assert known.members(WORLD).tolist() == [0, 1], "as large as its members, whatever number one of them claims"
    known = roster()
    assert (len(known), known.ranks, find(known, WORLD, 0)) == (0, 0, NOBODY)


def test_job_is_a_dump_when_nobody_but_flight_recorders_told_of_it() -> None:
    dumped = [member(WORLD, rank, "h0", rank, plugin_version="flight-recorder 2.7") for rank in range(2)]
    assert roster(*dumped).is_dump
    assert not roster(*dumped, member(WORLD, 2, "h1", 2, plugin_version="1.0")).is_dump
    assert not roster(*dumped, member(WORLD, 2, "h1", 2)).is_dump
    assert not roster().is_dump
