"""Every way is listed with its cost, or with the sentence why it is closed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.decision import Action, Option
from lockstep.verdict import Impact
from planner.context import Context, Layout, Resume
from planner.cost import price_of_acting, share_micro_batches, speed_rerouted, speed_without_replica, weigh
from tests.planner.build import IN_JOB, cluster, context, crash, job, pipeline, verdict

ALL = {"none", "reroute", "reattempt", "restart_process", "recycle", "drop_replica", "reconfigure", "replace"}
OLDER = Resume("/ckpt/train/300", "dcp", 1200.0, 30.0)
LARGE = Resume("/c", "dcp", 600.0, 300.0, bytes=8 * 125_000_000_000)
HANG = crash(grade="alert", fault_class="noncomm_hang")
WHOLE = cluster(restarts_whole_job=True)
ALARM = Impact(step_time_ratio=3.5, ranks_waiting=63)
EIGHT = Layout(replicas=8, micro_batches=4)


def option(action: Action, of: Context) -> Option:
    return next(each for each in weigh(of) if each.action == action)


def test_every_way_is_there_and_waiting_loses_what_is_missing_until_the_horizon() -> None:
    for about, speed, hours in ((verdict(), 0.5, 64 * 0.5 * 2), (crash(), 0.0, 128.0)):
        of = context(about, within=cluster(repair_s=7200.0, failures_per_node_day=0.0))
        assert {each.action for each in weigh(of)} == ALL
        waiting = option("none", of).cost
        assert (waiting.throughput_after, waiting.gpu_hours) == (speed, hours)


def test_restart_costs_its_standstill_the_work_done_again_and_the_speed_that_is_missing() -> None:
    of = context(crash(), within=cluster(repair_s=3600.0, failures_per_node_day=0.0))
    moved = option("reconfigure", of)
    at_once_h = (120 + 30 + 600) / 3600
    assert (moved.cost.downtime_s, moved.cost.throughput_after) == (150.0, 0.875)  # 7 of 8 nodes
    assert moved.cost.gpu_hours == pytest.approx(64 * (at_once_h + 0.125 * (1 - at_once_h)), abs=0.01)
    assert price_of_acting(option("replace", of), of.job) == pytest.approx(64 * at_once_h)


def test_spare_keeps_the_speed_and_doubt_and_money_are_in_its_price() -> None:
    sure, doubtful = (
        option("replace", context(crash(confidence=each), gpu_hour_price=price)).cost
        for each, price in ((1.0, 2.0), (0.6, None))
    )
    assert sure.throughput_after == 1.0
    assert sure.money == pytest.approx((sure.gpu_hours or 0.0) * 2.0, abs=0.02)
    assert doubtful.money is None
    assert doubtful.risk == pytest.approx(0.4)
    assert (sure.gpu_hours or 0.0) < (doubtful.gpu_hours or 0.0)


@pytest.mark.parametrize(
    ("action", "of", "because"),
    [
        ("reroute", context(), "no path leads around nic:h3/eth1"),
        ("reroute", context(verdict(component="link:leaf0--spine1")), "no path planner runs here"),
        ("reattempt", context(), "a slow part is not cured by trying again"),
        ("replace", context(within=cluster(spares=())), "no spare node is idle"),
        ("reattempt", context(crash(), within=cluster(can_restart=False)), "no job controller is set"),
        ("restart_process", context(), "nic:h3/eth1 is as slow under a new process"),
        (
            "restart_process",
            context(crash(fault_class="comm_hang"), within=WHOLE),
            "the job would start again on host:h3, which is at fault",
        ),
        (
            "restart_process",
            context(verdict(fault_class="noncomm_slow", component="rank:5", impact=ALARM), job(resume=None), WHOLE),
            "no checkpoint is verified complete, and a slow job is not begun anew",
        ),
        ("restart_process", context(verdict(fault_class="global_slow", impact=ALARM)), "nobody stands out"),
        ("reconfigure", context(of=job(nodes=())), "nobody knows which nodes the job has"),
        ("reconfigure", context(of=job(resume=None)), "there is no checkpoint that was verified to be complete"),
        (
            "reconfigure",
            context(crash(), job(resume_smaller=None)),
            "there is no checkpoint that was verified to be complete and loads on 7 nodes",
        ),
        ("reconfigure", context(of=job(min_nodes=8)), "the job needs 8 nodes and 7 would be left"),
        ("reconfigure", context(verdict(component="switch:spine1")), "switch:spine1 is not a part of one node"),
        ("replace", context(verdict(fault_class="software")), "software is no reason to take hardware away"),
        ("recycle", context(of=job(layout=pipeline())), "the job has not said that it can go on without a worker"),
        ("recycle", context(of=job(can=IN_JOB)), "only pipelines with replicas can hand their"),
        ("drop_replica", context(of=job(can=IN_JOB)), "there is no second replica to go on with"),
        (
            "drop_replica",
            context(crash(), job(nodes=("h3",), layout=EIGHT, can=IN_JOB)),
            "all 8 replicas run there",
        ),
    ],
)
def test_closed_way_says_why_and_has_no_cost(action: Action, of: Context, because: str) -> None:
    found = option(action, of)
    assert found.reason.startswith(f"unavailable: {because}")
    assert found.cost.gpu_hours is None


def test_pipeline_loses_less_by_handing_over_micro_batches_than_by_dropping_the_replica() -> None:
    known = job(layout=pipeline(), can=IN_JOB)
    for action, speed in (("recycle", 105 / 111), ("drop_replica", 105 / 120)):  # of so many slots
        found = option(action, context(crash(), known))  # type: ignore[arg-type]  # of the table
        assert found.cost.throughput_after == pytest.approx(speed, abs=0.001)
        assert found.cost.downtime_s == 15.0
        assert found.reason.endswith("32 micro-batches of each step go to 7 replicas: 4 do 37 and 3 do 36")
    told = option("recycle", context(crash(), replace(known, standstill_s=2.5, speed_after=0.8))).cost
    assert (told.downtime_s, told.throughput_after) == (2.5, 0.8), "what a loss cost before, and its own forecast"


def test_node_with_several_replicas_takes_them_all() -> None:
    found = option("drop_replica", context(crash(), job(nodes=("h3", "h4", "h5", "h6"), layout=EIGHT, can=IN_JOB)))
    assert found.cost.throughput_after == pytest.approx(4 / 6, abs=0.001)
    assert "4 micro-batches of each step go to 6 replicas: 2 do 6 and 4 do 5" in found.reason


def test_link_between_switches_is_gone_around_for_nothing() -> None:
    around = weigh(context(verdict(component="link:leaf0--spine1"), within=cluster(can_reroute=True)))[0]
    assert (around.action, around.cost.gpu_hours) == ("reroute", 0.0)


@pytest.mark.parametrize(
    ("of", "downtime_s", "says"),
    [
        (context(HANG, job(layout=pipeline())), 30.0, "from a replica"),
        (context(HANG), 60.0, "from the last checkpoint"),
        (context(verdict(fault_class="noncomm_slow", component="rank:5", impact=ALARM)), 60.0, "from the last"),
        (context(HANG, job(layout=pipeline(), resume=LARGE)), 40.0, ""),  # and 10 s for 125 GB from a peer
        (
            context(HANG, job(layout=pipeline()), WHOLE),
            150.0,
            "the controller restarts the whole job on its nodes, from the checkpoint of 600 s ago",
        ),
        (
            context(HANG, job(layout=pipeline(), resume=None, age_s=7200.0), WHOLE),
            120.0,
            "from the beginning, as no checkpoint is verified complete: 2.0 h of work are lost",
        ),
    ],
)
def test_new_process_takes_its_state_from_a_replica(of: Context, downtime_s: float, says: str) -> None:
    found = option("restart_process", of)
    assert found.cost.downtime_s == downtime_s
    assert says in found.reason


@pytest.mark.parametrize(
    ("known", "says", "downtime_s"),
    [
        ({}, "88% of its speed (in proportion to the nodes), from the checkpoint of 1200 s ago", 150.0),
        ({"is_in_gpus": True, "measured": frozenset({7, 8})}, "75% of its speed (measured)", 150.0),
        ({"is_in_gpus": True, "measured": frozenset({8})}, "75% of its speed (by a model)", 150.0),
        ({"throughput": {7: 48.0, 8: 64.0}}, "75% of its speed (set in the settings)", 150.0),
        (
            {"resume_smaller": replace(OLDER, convert=("python", "-m", "x"), convert_s=45.0)},
            "from the checkpoint of 1200 s ago, converted first in 45 s",
            195.0,
        ),
    ],
)
def test_fewer_nodes_have_the_speed_that_is_known(known: dict[str, object], says: str, downtime_s: float) -> None:
    table = {"throughput": {7: 48.0, 8: 64.0}} if "measured" in known else {}
    found = option("reconfigure", context(crash(), job(**({"resume_smaller": OLDER} | table | known))))
    assert says in found.reason
    assert found.reason.startswith("the job starts again on 7 nodes at ")
    assert found.cost.downtime_s == downtime_s
    assert found.cost.throughput_after == (0.75 if "75%" in says else 0.875)


@given(st.floats(1.0, 50.0), st.floats(0.0, 1.0), st.floats(60.0, 1e6), st.floats(0.0, 0.1))
def test_cheapest_comes_first(ratio: float, confidence: float, repair_s: float, rate: float) -> None:
    about = verdict(confidence=confidence, impact=Impact(step_time_ratio=ratio, ranks_waiting=63))
    around = cluster(repair_s=repair_s, failures_per_node_day=rate, can_reroute=True)
    hours = [each.cost.gpu_hours for each in weigh(context(about, job(layout=pipeline()), around))]
    known = [each for each in hours if each is not None]
    assert known == sorted(known) == hours[: len(known)]
    assert known[0] >= 0


def test_micro_batches_of_a_step_are_guessed_where_their_number_is_unknown() -> None:
    assert share_micro_batches(Layout(stages=2, replicas=2)).reason == (
        "8 micro-batches of each step go to 1 replicas: 1 do 16, if there are four for each stage"
    )


@given(st.integers(1, 8), st.integers(2, 16), st.integers(1, 64))
def test_pace_is_never_better_than_the_work_that_is_left_allows(stages: int, replicas: int, each: int) -> None:
    layout = Layout(stages=stages, replicas=replicas, micro_batches=each)
    share = share_micro_batches(layout)
    assert (replicas - 1) * share.most >= replicas * each > (replicas - 1) * (share.most - 1)
    assert 0 < speed_without_replica(layout, share) <= speed_rerouted(layout, share) <= 1
