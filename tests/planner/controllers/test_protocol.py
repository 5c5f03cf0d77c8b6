"""What makes no sense is refused before anything is done, with the value and the reason."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from planner.controllers.protocol import Restart, check_mark, check_name, check_order, check_template


@pytest.mark.parametrize("mark", ["", "../d-17", "a/b", "d 17", "d:17", "-d", ".d", "d\n", "a" * 101, "dé"])
def test_a_mark_that_would_not_survive_a_drain_reason_is_refused(mark: str) -> None:
    with pytest.raises(BadInput, match="is no mark"):
        check_mark(mark)


@given(st.from_regex(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,99}", fullmatch=True))
def test_every_good_mark_names_a_file_in_the_directory(mark: str) -> None:
    assert (Path("/spool") / f"{check_mark(mark)}.json").parent == Path("/spool")


@pytest.mark.parametrize("name", ["n[1-4]", "n1,n2", "", "n1 State=DOWN", "*"])
def test_a_list_of_nodes_is_no_name_of_one(name: str) -> None:
    with pytest.raises(BadInput, match="is no name of a node"):
        check_name(name, "node")


def test_a_template_with_an_unknown_field_is_refused() -> None:
    known = r"unknown fields \['host'\]; known are job, mark"
    for word, why in (("{host}", known), ("{", "is no template"), ("{job.id}", "unknown"), ("{}", "unknown")):
        with pytest.raises(BadInput, match=why):
            check_template(["submit", word], ("job", "mark"))


@pytest.mark.parametrize(
    ("order", "why"),
    [
        (Restart("m", "2", nnodes=0), "job 2 cannot run on 0 nodes"),
        (Restart("m", "2", environment={"A B": "1"}), "'A B' is no name of a variable"),
        (Restart("m", "2", environment={"A": "\0"}), "zero byte"),
        (Restart("m", "2", exclude=("n[1-4]",)), r"'n\[1-4\]' is no name of a node"),
        (Restart("m m", "2"), "'m m' is no mark"),
        (Restart("m", "2 3"), "'2 3' is no name of a job"),
    ],
)
def test_an_order_that_makes_no_sense_is_refused(order: Restart, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        check_order(order)
