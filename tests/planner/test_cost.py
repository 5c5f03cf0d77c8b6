"""Every way is listed with its cost, or with the sentence why it is closed."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.decision import Action, Option
from lockstep.verdict import Impact
from planner.context import Context, Durations, Layout, Resume
from planner.cost import price_of_acting, share_micro_batches, speed_rerouted, speed_without_replica, weigh
from tests.planner.build import IN_JOB, cluster, context, crash, job, pipeline, verdict

ALL = {"none", "reroute", "reattempt", "restart_process", "recycle", "drop_replica", "reconfigure", "replace"}


def option(action: Action, of: Context) -> Option:
    return next(each for each in weigh(of) if each.action == action)


def test_every_way_is_there_and_waiting_loses_what_is_missing_until_the_horizon() -> None:
    assert {each.action for each in weigh(context())} == ALL
    assert {each.action for each in weigh(context(crash()))} == ALL
    waiting = option("none", context(within=cluster(repair_s=7200.0, failures_per_node_day=0.0)))
    assert waiting.cost.throughput_after == 0.5
    assert waiting.cost.gpu_hours == 64 * 0.5 * 2
    waiting = option("none", context(crash(), within=cluster(repair_s=7200.0, failures_per_node_day=0.0)))
    assert (waiting.cost.throughput_after, waiting.cost.gpu_hours) == (0.0, 128.0)
    unknown = verdict(impact=Impact(step_time_ratio=None, ranks_waiting=3))
    assert option("none", context(unknown)).cost.gpu_hours is None


def test_restart_costs_its_standstill_the_work_done_again_and_the_speed_that_is_missing() -> None:
    constraints = cluster(repair_s=3600.0, failures_per_node_day=0.0)
    moved = option("reconfigure", context(crash(), within=constraints, durations=Durations(start_s=90.0)))
    at_once_h = (90 + 30 + 600) / 3600
    assert moved.cost.downtime_s == 120.0
    assert moved.cost.throughput_after == 0.875  # 7 of 8 nodes
    assert moved.cost.gpu_hours == pytest.approx(64 * (at_once_h + 0.125 * (1 - at_once_h)), abs=0.01)


def test_spare_keeps_the_speed_and_money_is_shown_where_there_is_a_price() -> None:
    replaced = option("replace", context(crash()))
    assert replaced.cost.throughput_after == 1.0
    assert replaced.reason.startswith("the job starts again with h8 instead of h3")
    priced = option("replace", context(crash(), gpu_hour_price=2.0))
    assert priced.cost.gpu_hours is not None
    assert priced.cost.money == pytest.approx(priced.cost.gpu_hours * 2.0, abs=0.02)
    assert option("replace", context(crash())).cost.money is None
    sure, doubtful = (option("replace", context(crash(confidence=each))) for each in (1.0, 0.6))
    assert (sure.cost.gpu_hours or 0.0) < (doubtful.cost.gpu_hours or 0.0)
    assert doubtful.cost.risk == pytest.approx(0.4)
    found = context(crash())
    assert price_of_acting(option("replace", found), found.job) == pytest.approx(64 * (120 + 30 + 600) / 3600)


@pytest.mark.parametrize(
    ("action", "of", "because"),
    [
        ("reroute", context(), "no path leads around nic:h3/eth1"),
        ("reroute", context(verdict(component="link:leaf0--spine1")), "no path planner runs here"),
        ("reattempt", context(), "a slow part is not cured by trying again"),
        ("replace", context(within=cluster(spares=())), "no spare node is idle"),
        ("reattempt", context(crash(), within=cluster(can_restart=False)), "no job controller is set"),
        ("restart_process", context(), "nic:h3/eth1 is as slow under a new process"),
        ("reconfigure", context(of=job(nodes=())), "nobody knows which nodes the job has"),
        ("reconfigure", context(of=job(resume=None)), "there is no checkpoint that was verified to be complete"),
        ("reconfigure", context(of=job(min_nodes=8)), "the job needs 8 nodes and 7 would be left"),
        ("reconfigure", context(verdict(component="switch:spine1")), "switch:spine1 is not a part of one node"),
        ("replace", context(verdict(fault_class="software")), "software is no reason to take hardware away"),
        ("recycle", context(of=job(layout=pipeline())), "the job has not said that it can go on without a worker"),
        ("recycle", context(of=job(can=IN_JOB)), "only pipelines with replicas can hand their"),
        ("drop_replica", context(of=job(can=IN_JOB)), "there is no second replica to go on with"),
        ("reconfigure", context(crash(), job(resume_smaller=None)), "there is no checkpoint that was verified"),
    ],
)
def test_closed_way_says_why_and_has_no_cost(action: Action, of: Context, because: str) -> None:
    found = option(action, of)
    assert found.reason.startswith(f"unavailable: {because}")
    assert found.cost.gpu_hours is None


def test_pipeline_loses_less_by_handing_over_micro_batches_than_by_dropping_the_replica() -> None:
    constraints = context(crash(), job(layout=pipeline(), can=IN_JOB))
    assert option("recycle", constraints).cost.throughput_after == pytest.approx(0.946, abs=0.001)  # 105 of 111 slots
    assert option("drop_replica", constraints).cost.throughput_after == pytest.approx(0.875, abs=0.001)  # 105 of 120
    for action in ("recycle", "drop_replica"):
        assert option(action, constraints).reason.endswith(
            "32 micro-batches of each step go to 7 replicas: 4 do 37 and 3 do 36"
        )


def test_node_with_several_replicas_takes_them_all_and_the_last_one_is_not_dropped() -> None:
    eight = Layout(replicas=8, micro_batches=4)
    found = option("drop_replica", context(crash(), job(nodes=("h3", "h4", "h5", "h6"), layout=eight, can=IN_JOB)))
    assert found.cost.throughput_after == pytest.approx(4 / 6, abs=0.001)
    assert "4 micro-batches of each step go to 6 replicas: 2 do 6 and 4 do 5" in found.reason
    alone = option("drop_replica", context(crash(), job(nodes=("h3",), layout=eight, can=IN_JOB)))
    assert alone.reason == "unavailable: all 8 replicas run there"


def test_what_a_loss_has_cost_a_job_before_is_what_the_next_one_costs() -> None:
    known = job(layout=pipeline(), can=IN_JOB, standstill_s=2.5)
    assert option("drop_replica", context(crash(), known)).cost.downtime_s == 2.5
    assert option("recycle", context(crash(), job(layout=pipeline(), can=IN_JOB))).cost.downtime_s == 15.0


def test_a_job_that_has_told_its_own_forecast_is_taken_at_its_word_for_one_loss() -> None:
    known = job(layout=pipeline(), can=IN_JOB, speed_after=0.8)
    assert option("recycle", context(crash(), known)).cost.throughput_after == 0.8


def test_link_between_switches_is_gone_around_for_nothing() -> None:
    constraints = context(verdict(component="link:leaf0--spine1"), within=cluster(can_reroute=True))
    assert weigh(constraints)[0].action == "reroute"
    assert weigh(constraints)[0].cost.gpu_hours == 0.0


def test_new_process_takes_its_state_from_a_replica_in_the_time_of_its_bytes() -> None:
    with_peer = option("restart_process", context(crash(grade="alert"), job(layout=pipeline())))
    alone = option("restart_process", context(crash(grade="alert")))
    assert with_peer.cost.downtime_s == 30.0
    assert alone.cost.downtime_s == 60.0
    assert "from a replica" in with_peer.reason
    assert "from the last checkpoint" in alone.reason
    large = Resume("/c", "dcp", 600.0, 300.0, bytes=8 * 125_000_000_000)
    found = option("restart_process", context(crash(grade="alert"), job(layout=pipeline(), resume=large)))
    assert found.cost.downtime_s == 40.0, "30 s for the process and 10 s for 125 GB from a peer"


def test_controller_that_knows_only_whole_jobs_makes_a_new_process_cost_a_whole_restart() -> None:
    whole = cluster(restarts_whole_job=True)
    hang = crash(grade="alert", fault_class="noncomm_hang")
    found = option("restart_process", context(hang, job(layout=pipeline()), whole))
    in_place = option("restart_process", context(hang, job(layout=pipeline())))
    assert found.cost.downtime_s == 150.0
    assert found.reason == "the controller restarts the whole job on its nodes, from the checkpoint of 600 s ago"
    assert (found.cost.gpu_hours or 0.0) > (in_place.cost.gpu_hours or 0.0)
    anew = option("restart_process", context(hang, job(layout=pipeline(), resume=None, age_s=7200.0), whole))
    assert anew.reason.endswith("from the beginning, as no checkpoint is verified complete: 2.0 h of work are lost")
    bad = option("restart_process", context(crash(fault_class="comm_hang"), within=whole))
    assert bad.reason == "unavailable: the job would start again on host:h3, which is at fault"


def test_job_on_fewer_nodes_starts_from_a_checkpoint_that_they_can_load_once_it_is_converted() -> None:
    older = Resume("/ckpt/train/300", "dcp", 1200.0, 30.0)
    found = option("reconfigure", context(crash(), job(resume_smaller=older)))
    what = "the job starts again on 7 nodes at 88% of its speed (in proportion to the nodes), "
    assert (found.reason, found.cost.downtime_s) == (f"{what}from the checkpoint of 1200 s ago", 150.0)
    converted = replace(older, convert=("python", "-m", "x"), convert_s=45.0)
    found = option("reconfigure", context(crash(), job(resume_smaller=converted)))
    assert (found.reason, found.cost.downtime_s) == (
        f"{what}from the checkpoint of 1200 s ago, converted first in 45 s",
        195.0,
    )
    nothing = option("reconfigure", context(crash(), job(resume_smaller=None)))
    assert nothing.reason.endswith("verified to be complete and loads on 7 nodes")


@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"is_in_gpus": True, "measured": frozenset({7, 8})}, "at 75% of its speed (measured)"),
        ({"is_in_gpus": True, "measured": frozenset({8})}, "at 75% of its speed (by a model)"),
        ({}, "at 75% of its speed (set in the settings)"),
    ],
)
def test_speed_on_fewer_nodes_says_where_it_is_from(known: dict[str, object], expected: str) -> None:
    found = option("reconfigure", context(crash(), job(throughput={7: 48.0, 8: 64.0}, **known)))
    assert expected in found.reason
    assert found.cost.throughput_after == 0.75


@given(st.floats(1.0, 50.0), st.floats(0.0, 1.0), st.floats(60.0, 1e6), st.floats(0.0, 0.1))
def test_costs_are_never_negative_and_cheapest_comes_first(
    ratio: float, confidence: float, repair_s: float, rate: float
) -> None:
    about = verdict(confidence=confidence, impact=Impact(step_time_ratio=ratio, ranks_waiting=63))
    constraints = cluster(repair_s=repair_s, failures_per_node_day=rate, can_reroute=True)
    hours = [each.cost.gpu_hours for each in weigh(context(about, job(layout=pipeline()), constraints))]
    known = [each for each in hours if each is not None]
    assert known == sorted(known)
    assert all(each >= 0 for each in known)
    assert hours[: len(known)] == known


def test_everybody_who_is_left_is_told_how_many_he_does_by_a_guess_where_the_number_is_unknown() -> None:
    share = share_micro_batches(Layout(stages=4, replicas=3, micro_batches=5))
    assert (share.each, share.most) == (5, 8)
    assert share.reason == "5 micro-batches of each step go to 2 replicas: 1 do 8 and 1 do 7"
    assert share_micro_batches(Layout(stages=2, replicas=2)).reason == (
        "8 micro-batches of each step go to 1 replicas: 1 do 16, if there are four for each stage"
    )


@given(st.integers(1, 8), st.integers(2, 16), st.integers(1, 64))
def test_pace_is_never_better_than_the_work_that_is_left_allows(stages: int, replicas: int, each: int) -> None:
    layout = Layout(stages=stages, replicas=replicas, micro_batches=each)
    share = share_micro_batches(layout)
    assert (replicas - 1) * share.most >= replicas * each > (replicas - 1) * (share.most - 1)
    assert 0 < speed_without_replica(layout, share) <= speed_rerouted(layout, share) <= 1
