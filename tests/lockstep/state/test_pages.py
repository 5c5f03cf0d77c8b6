"""Pages of incidents hold each once, whatever is filtered and whatever comes in meanwhile; who was told is found."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lockstep.execution import Outcome
from lockstep.state.database import ControlDatabase
from lockstep.state.decisions import save_outcome
from lockstep.state.incidents import outcomes_of, page_incidents, save_incidents, state_of_incidents
from lockstep.verdict import Incident
from tests.lockstep.state.build import incident

JOBS, STATES, CLASSES = ("a", "b'\"%"), ("open", "closed"), ("comm_slow", "crash")
PARTS = ("nic:h0/eth0", "NIC:h0/eth0", "link:h0/eth0--leaf%", "gpu:h_0/1")


@st.composite
def incidents(draw: st.DrawFn, prefix: str) -> list[Incident]:
    made = []
    for number in range(draw(st.integers(0, 12))):
        usual = incident(
            f"{prefix}{number}",
            job=draw(st.sampled_from(JOBS)),
            state=draw(st.sampled_from(STATES)),
            opened_ns=draw(st.integers(0, 3)),
        )
        said = {"fault_class": draw(st.sampled_from(CLASSES)), "component": draw(st.sampled_from(PARTS))}
        made.append(usual.model_copy(update={"verdict": usual.verdict.model_copy(update=said)}))
    return made


@given(
    incidents("i"),
    incidents("later"),
    st.integers(1, 5),
    st.fixed_dictionaries(
        {
            "job": st.none() | st.sampled_from(JOBS),
            "state": st.none() | st.sampled_from(STATES),
            "fault_class": st.none() | st.sampled_from(CLASSES),
            "component": st.none() | st.sampled_from(PARTS),
        }
    ),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_every_incident_that_is_wanted_is_seen_once_and_in_order(
    db: ControlDatabase, here: list[Incident], later: list[Incident], limit: int, wanted: dict[str, str | None]
) -> None:
    _empty(db)
    save_incidents(db, here, None)
    seen: list[tuple[int, str]] = []
    while True:
        page = page_incidents(db, **wanted, limit=limit, before=seen[-1] if seen else None)
        seen += [(each.opened_ns, each.id) for each in page]
        if len(page) < limit:
            break
        save_incidents(db, later, None)
    assert seen == sorted(set(seen), reverse=True)
    expected = {(each.opened_ns, each.id) for each in here if _fits(each, wanted)}
    assert expected <= set(seen)
    assert set(seen) <= expected | {(each.opened_ns, each.id) for each in later if _fits(each, wanted)}


def _empty(control: ControlDatabase) -> None:
    with control.begin() as connection:
        for table in ("verdict_changes", "changes", "incidents"):
            connection.exec_driver_sql(f"DELETE FROM {table}")


def _fits(incident: Incident, wanted: dict[str, str | None]) -> bool:
    verdict = incident.verdict
    said = {
        "job": incident.job,
        "state": incident.state,
        "fault_class": verdict.fault_class,
        "component": verdict.component,
    }
    return all(value is None or said[name] == value for name, value in wanted.items())


def test_state_moves_with_every_incident_and_outcome(db: ControlDatabase) -> None:
    states = [state_of_incidents(db)]
    save_incidents(db, [incident("i1")], None)
    states.append(state_of_incidents(db))
    save_incidents(db, [incident("i1", updated_ns=300)], None)
    states.append(state_of_incidents(db))
    save_outcome(db, Outcome(incident="i1", was_right=True, who="ann", ts_ns=1))
    states.append(state_of_incidents(db))
    assert len(set(states)) == 4


def test_outcomes_are_found_for_the_incidents_that_have_one(db: ControlDatabase) -> None:
    save_incidents(db, [incident("i1"), incident("i2")], None)
    outcome = Outcome(incident="i1", was_right=True, who="ann", ts_ns=1)
    save_outcome(db, outcome)
    assert outcomes_of(db, ["i1", "i2"]) == {"i1": outcome}
    assert outcomes_of(db, []) == {}


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({"fault_class": "crash"}, ["i2"]),
        ({"component": "nic:h0/eth0"}, ["i1"]),
        ({"component": "link:h0/eth0--leaf%"}, ["i3"]),
        ({"fault_class": "comm_slow", "component": "nic:h0/eth0"}, ["i1"]),
        ({"fault_class": "crash", "component": "nic:h0/eth0"}, []),
        ({"component": "x' OR '1'='1"}, []),
    ],
)
def test_class_and_component_are_those_that_the_verdict_names(
    db: ControlDatabase, wanted: dict[str, str], expected: list[str]
) -> None:
    said = {
        "i1": {"fault_class": "comm_slow", "component": "nic:h0/eth0"},
        "i2": {"fault_class": "crash", "component": "NIC:h0/eth0"},
        "i3": {"fault_class": "comm_slow", "component": "link:h0/eth0--leaf%"},
    }
    told = [incident(name) for name in said]
    save_incidents(
        db,
        [each.model_copy(update={"verdict": each.verdict.model_copy(update=said[each.id])}) for each in told],
        None,
    )
    assert [each.id for each in page_incidents(db, **wanted, limit=10, before=None)] == expected
