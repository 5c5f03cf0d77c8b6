"""Net plugins read whole files only, and find in them the ports that the plan has for their queue pairs."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import BadInput
from lockstep.host_paths import HostPaths, PathChoice
from lockstep.queue_pair_file import (
    QueuePair,
    QueuePairAdvice,
    advise_queue_pairs,
    dump_queue_pairs,
    parse_queue_pairs,
    write_queue_pairs,
)

PAIRS = st.builds(
    QueuePair,
    st.just("10.0.0.1"),
    st.sampled_from(("10.0.0.2", "2001:db8::1")),
    st.integers(0xC000, 0xFFFF),
    st.integers(0, 1000).map(lambda share: share / 1000),
    st.text(st.characters(codec="utf-8"), max_size=30),
)


def choice(**fields: Any) -> PathChoice:
    usual: dict[str, Any] = {
        "connection": "j/q0",
        "nic": "mlx5_0",
        "dst": "h1",
        "dst_nic": "mlx5_0",
        "links": ("leaf0--spine0",),
    }
    usual |= {"proto": "roce", "source": "10.0.0.1", "destination": "10.0.0.2", "dport": 4791, "sports": (49_152,)}
    return PathChoice.model_validate({**usual, **fields})


def advised(*choices: PathChoice, is_enforceable: bool = True) -> QueuePairAdvice:
    told = HostPaths(
        host="h0",
        generation=7,
        made_ns=1,
        lease_end_ns=90 * 10**9,
        is_enforceable=is_enforceable,
        choices=choices,
    )
    return advise_queue_pairs(told)


def test_queue_pairs_come_in_the_order_of_the_plan_with_the_first_of_their_ports() -> None:
    first, second = choice(sports=(49_160, 49_161)), choice(connection="j/q1", weight=0.5)
    assert advised(first, second) == QueuePairAdvice(
        7,
        90,
        (
            QueuePair("10.0.0.1", "10.0.0.2", 49_160, 1.0, "j/q0"),
            QueuePair("10.0.0.1", "10.0.0.2", 49_152, 0.5, "j/q1"),
        ),
    )


def test_what_has_no_port_no_address_or_is_a_socket_is_left_out() -> None:
    assert advised(choice(sports=()), choice(source=None), choice(proto="tcp")).queue_pairs == ()


def test_where_switches_choose_there_is_no_port_to_tell() -> None:
    assert advised(choice(), is_enforceable=False).queue_pairs == ()


def test_the_file_says_that_it_is_advice(tmp_path: Path) -> None:
    write_queue_pairs(tmp_path / "plan.queue-pairs", advised(choice()))
    assert (tmp_path / "plan.queue-pairs").read_text().splitlines() == [
        "lockstep-queue-pairs 1 7 90 advisory",
        "10.0.0.1 10.0.0.2 49152 1 j/q0",
        "end 1",
    ]


@given(st.lists(PAIRS, max_size=5))
def test_what_is_written_is_what_is_read(pairs: list[QueuePair]) -> None:
    advice = QueuePairAdvice(3, 0, tuple(pairs))
    assert parse_queue_pairs(dump_queue_pairs(advice)) == advice


@given(st.lists(PAIRS, max_size=3), st.data())
def test_a_file_that_is_cut_anywhere_counts_as_none(pairs: list[QueuePair], data: st.DataObject) -> None:
    whole = dump_queue_pairs(QueuePairAdvice(3, 0, tuple(pairs)))
    with pytest.raises(BadInput, match="is cut short"):
        parse_queue_pairs(whole[: data.draw(st.integers(0, len(whole) - 1))])


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        (b"lockstep-queue-pairs 2 1 0 advisory\nend 0\n", "does not begin with"),
        (b"lockstep-paths\nend 0\n", "does not begin with"),
        (b"lockstep-queue-pairs 1 1 0 advisory\n10.0.0.1 10.0.0.2 x 1 q\nend 1\n", "a line that is none"),
        (b"lockstep-queue-pairs 1 1 0 advisory\n10.0.0.1 10.0.0.2\nend 1\n", "a line that is none"),
        (b"", "cut short"),
    ],
)
def test_another_file_is_refused_in_a_sentence(written: bytes, complaint: str) -> None:
    with pytest.raises(BadInput, match=complaint):
        parse_queue_pairs(written)
