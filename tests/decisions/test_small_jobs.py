"""From rows to the decision in a job of few hosts: its analyzer's own verdict is what the planner is asked about."""

from dataclasses import replace

import pytest

from analyzer.impact import Account
from analyzer.verdicts import GradingOptions, make_verdict
from lockstep.decision import ManualReason
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.state.leases import Lease
from lockstep.store.store import Store
from lockstep.verdict import Verdict
from simulator.scenario import parse_scenario
from tests.analyzer.cluster import Cluster
from tests.analyzer.looking import found, look, world
from tests.builders import T0
from tests.decisions.handbook import Case, check

DIES = """
summary = "{hosts} hosts, and the last loses power"
duration_s = 45
timeline = ["at 12 s fail host:h{last} gone"]

[cluster]
hosts = {hosts}
gpus_per_host = 2
nics_per_host = 2
hosts_per_leaf = {hosts}
spines = 1
nic_gbps = 200.0

[job]
compute_ms = 300.0
allreduce_mb = [256]
"""


def verdict_on_dead_host(store: Store, control: ControlDatabase, hosts: int) -> Verdict:
    cluster = Cluster(store, control, parse_scenario(DIES.format(hosts=hosts, last=hosts - 1), "dies"))
    cluster.run(10)
    cluster.silent = {f"h{hosts - 1}"}
    cluster.run(35)
    (incident,) = cluster.open
    over = incident.model_copy(update={"state": "closed", "closed_ns": incident.updated_ns})
    save_incidents(control, [over], None)  # the planner is asked about what a case says, and nothing else
    return incident.verdict


def ask(verdict: Verdict, dead: str, hosts: int, asks: ManualReason | None) -> Case:
    job = {"nodes": tuple(f"h{number}" for number in range(hosts)), "gpus": 2 * hosts}
    return Case("a host dies", [verdict], "replace", "it is gone", takes=(dead,), job=job, asks=asks)


@pytest.mark.slow
def test_a_dead_host_of_three_is_replaced_by_itself(
    embedded_store: Store, control: ControlDatabase, lease: Lease
) -> None:
    verdict = verdict_on_dead_host(embedded_store, control, 3)
    assert (verdict.fault_class, verdict.component) == ("crash", "host:h2")
    assert (verdict.coverage, verdict.grade) == (0.6667, "isolate")
    check(ask(verdict, "h2", 3, None), control, lease)


@pytest.mark.slow
def test_of_two_hosts_neither_is_replaced_on_the_word_of_the_other(
    embedded_store: Store, control: ControlDatabase, lease: Lease
) -> None:
    verdict = verdict_on_dead_host(embedded_store, control, 2)
    assert (verdict.component, verdict.coverage, verdict.grade) == ("host:h1", 0.5, "alert")
    check(ask(verdict, "h1", 2, "held"), control, lease)


def test_one_host_of_three_that_says_it_waits_for_a_silent_one_has_nobody_replaced_without_a_person(
    control: ControlDatabase, lease: Lease
) -> None:
    evidence = ({"kind": "silence", "host": "h2"}, {"kind": "standstill", "told_by": ["h0", "h2"]})
    accused = replace(
        found("host:h2", "crash", likelihood=0.95), evidence=evidence, stands_still=True, ranks_waiting=5
    )
    context = look(silent=["h2"], roster=world(hosts=3, gpus=2))
    verdict = make_verdict(accused, T0, context, Account(T0, T0, T0), GradingOptions())
    check(ask(verdict.model_copy(update={"id": "v1"}), "h2", 3, "held"), control, lease)
