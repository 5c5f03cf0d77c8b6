"""A hostlist stands for its names, and what stands for too many or for none is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.intake.topologies.hostlists import MOST_NAMES, expand_hostlist


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("n[3]", ["n3"]),
        ("n[001-003,020]", ["n001", "n002", "n003", "n020"]),
        ("n[9-11]", ["n9", "n10", "n11"]),
        ("n[098-101]-ib", ["n098-ib", "n099-ib", "n100-ib", "n101-ib"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
        ("[1101-1102],x", ["1101", "1102", "x"]),
    ],
)
def test_expression_stands_for_its_names_in_order(text: str, names: list[str]) -> None:
    assert expand_hostlist(text) == names


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("n[1-2", "is no list of names: see character 2"),
        ("n]", "is no list of names: see character 2"),
        ("a b", "is no list of names: see character 2"),
        ("n[]", "is no list of numbers"),
        ("n[a-b]", "is no list of numbers"),
        ("n[5-3]", "5-3 is no range"),
        ("n[1-99999999]", "no range of at most"),
        ("n[1-1000]m[1-1000]", f"more than {MOST_NAMES:,} names"),
        ("n[" + ",".join(["1-100000"] * 3) + "]", "stands for more than"),
    ],
)
def test_expression_that_cannot_be_is_refused(text: str, reason: str) -> None:
    with pytest.raises(BadInput, match=reason.replace("[", r"\[")):
        expand_hostlist(text)


@given(st.lists(st.integers(0, 999), min_size=1, max_size=20))
def test_numbers_keep_their_leading_zeros(numbers: list[int]) -> None:
    text = ",".join(f"{number:04}" for number in numbers)
    assert expand_hostlist(f"n[{text}]") == [f"n{number:04}" for number in numbers]


@given(st.text(alphabet="n0123456789[]-, é", max_size=40))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert len(expand_hostlist(text)) <= MOST_NAMES
