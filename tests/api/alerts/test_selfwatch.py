"""Lockstep raises the alarm about itself: nobody reports, nothing closes, the disk fills, nobody works."""

from typing import Any

import pytest

from api.alerts.selfwatch import Agents, Facts, Patience, Watched, find_troubles, gather_facts
from lockstep.records import Agent
from lockstep.state.database import ControlDatabase, open_control
from lockstep.state.leases import take_lease
from lockstep.state.tokens import create_token
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from tests.api.alerts.build import after
from tests.api.fake_store import FakeStore, away
from tests.builders import T0, make, rows

NOW_NS = after(1000)
PATIENCE = Patience(silent_s=300, full_share=0.9, since_ns=T0)


def facts(**changes: Any) -> Facts:
    well: dict[str, Any] = {
        "agents": Agents(hosts=4, last_seen_ns=NOW_NS, last_host="h1", behind_s=5.0),
        "expects_agents": True,
        "store_trouble": None,
        "store_used": 0.5,
        "lease_ends": {"analyzer": NOW_NS + 1, "planner": NOW_NS + 1},
        "oldest_message": None,
    }
    return Facts(**(well | changes))


def test_nothing_is_said_while_all_is_well() -> None:
    assert find_troubles(facts(), PATIENCE, NOW_NS) == {}


@pytest.mark.parametrize(
    ("changes", "name", "sentence"),
    [
        ({"agents": Agents(4, after(600))}, "agents", "no agent reports: the last of 4 hosts spoke 400 s ago"),
        ({"agents": Agents(0, 0)}, "agents", "no agent reports: no telemetry in the last 600 s"),
        (
            {"agents": Agents(4, NOW_NS, "h1", 301.0)},
            "windows",
            "no window closes: data of host h1 ends 301 s before",
        ),
        ({"store_trouble": "gone", "agents": None}, "store", "the store is away: gone"),
        ({"store_used": 0.93}, "disk", "the store's disk is nearly full: 93% of it is used"),
        ({"lease_ends": {"planner": NOW_NS}}, "analyzer", "no analyzer is at work: nobody has held its lease for"),
        ({"lease_ends": {"analyzer": NOW_NS, "planner": after(600)}}, "planner", "for 400 s"),
        ({"oldest_message": ("ops", after(500))}, "outbox", "one to ops has waited for 500 s"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(changes: dict[str, Any], name: str, sentence: str) -> None:
    troubles = find_troubles(facts(**changes), PATIENCE, NOW_NS)
    assert list(troubles) == [name]
    assert sentence in troubles[name]


def test_nobody_is_missed_before_there_was_a_chance() -> None:
    nothing = facts(agents=Agents(0, 0), lease_ends={})
    assert find_troubles(nothing, Patience(300, 0.9, since_ns=NOW_NS), NOW_NS) == {}


def test_site_without_agents_misses_none() -> None:
    assert find_troubles(facts(agents=Agents(0, 0), expects_agents=False), PATIENCE, NOW_NS) == {}


@pytest.fixture
def control(tmp_path: Any) -> Any:
    with open_control(f"sqlite:///{tmp_path / 'control.db'}") as database:
        yield database


def test_facts_come_from_a_real_store(embedded_store: Store, control: ControlDatabase) -> None:
    told = [
        make(Agent, host="h1", ts_ns=after(10), watermark_ns=after(9)),
        make(Agent, host="h2", ts_ns=after(20), watermark_ns=after(5)),
        make(Agent, host="silent", ts_ns=T0 - 600 * 10**9, watermark_ns=0),
    ]
    embedded_store.insert(TABLE_BY_NAME["agents"], rows(*told), token="a")
    take_lease(control, "analyzer", "me", ttl_ns=5, now_ns=T0)
    create_token(control, scope="ingest", host="h1", name="h1", now_ns=T0)
    found = gather_facts(Watched(embedded_store, lambda: "batches wait"), control, [], after(-700), after(21))
    assert found.agents == Agents(hosts=3, last_seen_ns=after(20), last_host="h2", behind_s=15.0)
    assert (found.expects_agents, found.store_trouble, found.oldest_message) == (True, "batches wait", None)
    assert found.store_used is not None
    assert 0 < found.store_used < 1
    assert found.lease_ends == {"analyzer": T0 + 5}


def test_empty_store_knows_no_agents(embedded_store: Store, control: ControlDatabase) -> None:
    found = gather_facts(Watched(embedded_store), control, [], 0, after(21))
    assert found.agents == Agents(hosts=0, last_seen_ns=0, last_host="", behind_s=0.0)
    assert not found.expects_agents


def test_store_that_is_away_is_a_fact(control: ControlDatabase) -> None:
    class AwayStore(FakeStore):
        def query(self, sql: str, parameters: Any = None) -> Any:
            raise away()

    found = gather_facts(Watched(AwayStore()), control, [], 0, T0)
    assert (found.agents, found.store_trouble) == (None, "the store at nowhere does not answer")
