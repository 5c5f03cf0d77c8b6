"""Path plans are numbered upwards, hosts see only what changed for them, and who lost the role writes none."""

import pytest

from lockstep.errors import LeaseLost, NotPresent
from lockstep.host_paths import PathChoice, PathCount, PathSummary
from lockstep.state.database import ControlDatabase
from lockstep.state.fabric import (
    list_path_counts,
    list_path_plans,
    newest_path_plan,
    paths_of_host,
    save_path_count,
    save_path_plan,
)
from lockstep.state.leases import Lease, take_lease


def summary(made_ns: int = 5, **more: float) -> PathSummary:
    return PathSummary(generation=0, made_ns=made_ns, flows=2, with_ports=1, max_use=0.5, bound=0.5, **more)


def choice(connection: str = "f0", sports: tuple[int, ...] = (4000,)) -> PathChoice:
    return PathChoice(
        connection=connection,
        nic="eth0",
        dst="h1",
        dst_nic="eth0",
        links=("a", "b"),
        destination="10.0.0.2",
        sports=sports,
    )


def held(db: ControlDatabase, holder: str = "me", now_ns: int = 0) -> Lease:
    lease = take_lease(db, "paths", holder, 100, now_ns)
    assert lease is not None
    return lease


def test_plans_are_numbered_upwards_and_the_newest_is_in_force(db: ControlDatabase) -> None:
    assert newest_path_plan(db) is None
    first, second = (save_path_plan(db, summary(made_ns=n), {}, held(db), True) for n in (1, 2))
    assert second > first
    assert newest_path_plan(db) == summary(made_ns=2).model_copy(update={"generation": second})
    assert [plan.generation for plan in list_path_plans(db)] == [second, first]


def test_a_host_is_told_its_choices_and_keeps_the_number_while_they_stay(db: ControlDatabase) -> None:
    first = save_path_plan(db, summary(), {"h0": [choice()]}, held(db), True)
    save_path_plan(db, summary(), {"h0": [choice()], "h1": [choice("f1")]}, held(db), True)
    third = save_path_plan(db, summary(), {"h0": [choice()], "h1": [choice("f2")]}, held(db), True)
    assert paths_of_host(db, "h0").generation == first
    assert (paths_of_host(db, "h1").generation, paths_of_host(db, "h1").choices) == (third, (choice("f2"),))


def test_a_host_that_left_the_plan_is_told_that_it_has_none(db: ControlDatabase) -> None:
    save_path_plan(db, summary(), {"h0": [choice()]}, held(db), True)
    second = save_path_plan(db, summary(), {}, held(db), True)
    assert (paths_of_host(db, "h0").generation, paths_of_host(db, "h0").choices) == (second, ())


def test_a_host_that_no_plan_named_is_not_there(db: ControlDatabase) -> None:
    with pytest.raises(NotPresent, match="no path plan has named host 'h9'"):
        paths_of_host(db, "h9")


def test_a_planner_that_lost_its_role_writes_nothing(db: ControlDatabase) -> None:
    mine = held(db)
    held(db, "other", now_ns=200)
    with pytest.raises(LeaseLost):
        save_path_plan(db, summary(), {"h0": [choice()]}, mine, True)
    assert newest_path_plan(db) is None


def test_the_newest_word_of_each_host_counts(db: ControlDatabase) -> None:
    for enforced in (1, 3):
        save_path_count(db, "h0", PathCount(generation=1, planned=4, enforced=enforced), now_ns=enforced)
    assert list_path_counts(db)["h0"].enforced == 3


def test_the_file_of_a_host_has_its_ports_and_asks_for_those_not_known(db: ControlDatabase) -> None:
    choices = [choice(), choice("f1", sports=()), choice("f2").model_copy(update={"destination": None})]
    number = save_path_plan(db, summary(), {"h0": choices}, held(db), True)
    written = paths_of_host(db, "h0").as_file()
    assert (written.generation, [entry.ports for entry in written.entries]) == (number, [(4000,), ()])


def test_advice_is_not_written_for_the_shim(db: ControlDatabase) -> None:
    save_path_plan(db, summary(), {"h0": [choice()]}, held(db), False)
    assert paths_of_host(db, "h0").as_file().entries == ()
