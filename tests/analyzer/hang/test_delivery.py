"""What was sent and did not arrive names a pair, a NIC, or the rank that owes the next step."""

from typing import Any

from analyzer.hang.facts import StepCounts
from analyzer.windows.window import Finding
from tests.analyzer.hang.build import Job, Line, line, steps_of, world
from tests.builders import SECOND, T0

NICS = {"h0": ("eth0",), "h1": ("eth0",), "h2": ("eth0",), "h3": ("eth0",)}
SPREAD = 8  # a communicator with one rank on each of four hosts


def ring(state_of: dict[int, str] | None = None, algo: str = "RING") -> list[Line]:
    """Everybody inside operation 5 of a communicator of ranks 0, 2, 4 and 6 waits for the one before."""
    states = dict.fromkeys(range(4), "recv_wait") | (state_of or {})
    told = {"comm": SPREAD, "head_channel": 0, "open_algo": algo}
    return [
        line(rank, (6, 6, 4), state=states[rank], head_peer=(rank - 1) % 4, process=2 * rank, **told)
        for rank in range(4)
    ]


def spread(*rows: tuple[int, int, int, int], comm: int = SPREAD) -> StepCounts:
    return steps_of(*rows, comm=comm)


def find(steps: StepCounts, lines: list[Line] | None = None, **facts: Any) -> list[Finding]:
    told = {"steps": steps, "nics": NICS, **facts}
    return Job(ranks=8, comms={SPREAD: [0, 2, 4, 6]}, lines=lines or ring(), facts=told).find()


def named(findings: list[Finding]) -> list[tuple[str, str]]:
    return [(finding.fault_class, finding.component) for finding in findings]


def test_step_that_was_sent_and_never_arrived_names_the_wire() -> None:
    (finding,) = find(spread((0, 1, 6, 0), (1, 2, 2, 2), (2, 3, 4, 4), (3, 0, 6, 6)))
    assert (finding.fault_class, finding.component, finding.side) == ("comm_hang", "link:h0/eth0--h1/eth0", "tx")
    assert (finding.likelihood, finding.may_isolate) == (0.8, False)
    assert "host:h1" in finding.ambiguous_with
    assert "host:h0" not in finding.ambiguous_with


def test_receiver_that_has_not_sent_what_it_could_is_to_blame_itself() -> None:
    (finding,) = find(spread((0, 1, 6, 0), (2, 3, 2, 2), (3, 0, 4, 4)))
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "host:h1")
    assert finding.ambiguous_with == ("gpu:h1/0",)
    steps = spread((3, 0, 6, 0), (1, 2, 2, 2), (2, 3, 4, 4))
    assert named(find(steps)) == [("noncomm_hang", "host:h0")]
    steps = spread((0, 1, 9, 2), (1, 2, 3, 3), (2, 3, 5, 5), (3, 0, 7, 7))
    assert named(find(steps)) == [("noncomm_hang", "host:h1")]
    (finding,) = find(spread((0, 1, 6, 0), (2, 3, 2, 2), (3, 0, 4, 4)), ring({1: "gpu_wait"}))
    assert (finding.component, finding.ambiguous_with, finding.likelihood) == ("gpu:h1/0", ("host:h1",), 0.7)
    steps = spread((0, 1, 3, 0), (1, 2, 1, 0), (2, 3, 1, 1), (3, 0, 2, 2))
    (finding,) = find(steps)
    assert (finding.fault_class, finding.component, finding.side) == ("comm_hang", "nic:h1/eth0", None)


def test_who_records_no_steps_where_others_do_is_not_said_to_have_got_none() -> None:
    """As a stuck kernel was seen once ranks had been asked for more samples at different operations."""
    half = ring({0: "gpu_wait", 1: "kernel_begun", 2: "recv_wait", 3: "kernel_begun"})
    assert find(spread((2, 3, 4, 0)), half) == []
    late = ring({0: "kernel_wait", 1: "kernel_begun", 2: "recv_wait", 3: "kernel_begun"})
    assert named(find(spread((2, 3, 4, 0)), late)) == [("noncomm_hang", "gpu:h0/0")]


def test_of_two_ranks_only_one_that_did_nothing_can_be_told_apart() -> None:
    lines = [row | {"comm": 9, "head_peer": 1 - row["rank"]} for row in ring()[:2]]
    both = {"steps": spread((0, 1, 2, 0), (1, 0, 2, 0), comm=9), "nics": NICS}
    (finding,) = Job(ranks=8, comms={9: [0, 2]}, lines=lines, facts=both).find()
    assert (finding.component, finding.side, finding.likelihood) == ("link:h0/eth0--h1/eth0", None, 0.4)
    assert {"nic:h0/eth0", "nic:h1/eth0"} <= set(finding.ambiguous_with)
    one = Job(ranks=8, comms={9: [0, 2]}, lines=lines, facts={"steps": spread((0, 1, 2, 0), comm=9)})
    assert named(one.find()) == [("noncomm_hang", "host:h1")]


TREE = ((1, 0, 1, 1), (2, 0, 1, 1), (3, 1, 1, 1), (0, 1, 1, 1))  # rank 0 above 1 and 2, rank 3 below 1


def test_tree_names_a_single_wire_or_the_only_rank_that_did_nothing_or_nothing() -> None:
    assert named(find(spread(*TREE, (0, 2, 1, 0)), ring(algo="TREE"))) == [("comm_hang", "link:h0/eth0--h2/eth0")]
    assert named(find(spread((2, 0, 1, 0), (1, 0, 1, 1), (0, 1, 1, 1)), ring(algo="TREE"))) == [
        ("noncomm_hang", "host:h3")
    ]
    assert find(spread(*TREE, (0, 2, 2, 1), (1, 3, 1, 0), (2, 1, 1, 1)), ring(algo="TREE")) == []


def exchange(done: dict[tuple[int, int], tuple[int, int]]) -> list[Line]:
    """Sends and receives that have ended between ranks; two more of each are enqueued, and receivers wait."""
    told = {"head_channel": 1, "open_ns": 10, "comm": SPREAD}
    sends = [
        line(src, (n + 2, n + 2, n), func="Send", peer=dst, state="gpu_wait", head_peer=dst, process=2 * src, **told)
        for (src, dst), (n, _) in done.items()
    ]
    receives = [
        line(dst, (n + 2, n + 2, n), func="Recv", peer=src, state="recv_wait", head_peer=src, process=2 * dst, **told)
        for (src, dst), (_, n) in done.items()
    ]
    return [row | {"open_ns": 11} for row in sends] + receives


def test_receive_whose_send_has_ended_names_the_wire_unless_the_receiver_sent_least() -> None:
    lines = exchange({(0, 1): (9, 5), (1, 2): (6, 6), (2, 3): (7, 7), (3, 0): (8, 8)})
    assert named(find(spread(), lines)) == [("comm_hang", "link:h0/eth0--h1/eth0")]
    lines = exchange({(0, 1): (9, 5), (1, 2): (5, 5), (2, 3): (6, 6), (3, 0): (7, 7)})
    assert named(find(spread(), lines)) == [("noncomm_hang", "host:h1")]


def test_nothing_is_counted_without_steps_or_before_all_are_known_to_stand() -> None:
    assert Job(lines=world()).find() == []
    assert find(spread()) == []
    steps = spread((0, 1, 6, 0), (1, 2, 2, 2), (2, 3, 4, 4), (3, 0, 6, 6))
    late_row = {"seen_ns": T0 - 2 * SECOND, "since_ns": T0 - 3 * SECOND}
    lines = [each | late_row if each["rank"] == 3 else each for each in ring()]
    assert find(steps, lines) == []
    recorded = find(steps, lines, interval_ns=0)
    assert named(recorded) == [("comm_hang", "link:h0/eth0--h1/eth0")], "a recording has no next"
