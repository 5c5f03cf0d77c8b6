"""A hostlist stands for its names, and what stands for too many or for none is refused."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.hostlists import MOST_NAMES, expand_hostlist, match_hosts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("", []),
        ("login", ["login"]),
        ("a,b[1,3],c", ["a", "b1", "b3", "c"]),
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
        ("n1,,n2", "is no list of names: see character 4"),
        (",", "is no list of names: see character 1"),
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


SPANS = st.tuples(st.sampled_from(["n", "gpu-", "r1c"]), st.integers(0, 500), st.integers(0, 30), st.integers(1, 4))


@given(st.lists(SPANS, max_size=5))
def test_expression_stands_for_what_it_was_made_from(spans: list[tuple[str, int, int, int]]) -> None:
    written = ",".join(f"{name}[{first:0{width}d}-{first + more:0{width}d}]" for name, first, more, width in spans)
    names = [f"{name}{first + i:0{width}d}" for name, first, more, width in spans for i in range(more + 1)]
    assert expand_hostlist(written) == names


@given(st.text(alphabet="n0123456789[]-, é", max_size=40))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    with contextlib.suppress(BadInput):
        assert len(expand_hostlist(text)) <= MOST_NAMES


@pytest.mark.parametrize(
    ("names", "hosts", "expected"),
    [
        (["h3"], ["h3.site"], {"h3": "h3.site"}),
        (["h3.site"], ["h3"], {"h3.site": "h3"}),
        (["h3"], ["h3", "h3.site"], {"h3": "h3"}),
        (["h3"], ["h3.a", "h3.b"], {}),  # it may be either
        (["h3.a", "h3.b"], ["h3"], {}),  # either may be it
        (["h3", "h3.a"], ["h3"], {"h3": "h3"}),
        (["h3", "h3.a"], ["h3.a"], {"h3.a": "h3.a"}),  # two names are never one host
        (["h3.a"], ["h3.b"], {}),
        (["h33"], ["h3.site"], {}),
        (["h3"], [], {}),
    ],
)
def test_domain_on_one_side_makes_no_other_host_where_only_one_can_be_meant(
    names: list[str], hosts: list[str], expected: dict[str, str]
) -> None:
    assert match_hosts(names, hosts) == expected
