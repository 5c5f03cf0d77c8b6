"""The waiting is followed over all communicators, to who waits for nobody."""

from dataclasses import replace

import numpy as np
import pytest

from analyzer.hang.facts import NO_STEPS, Call, HangOptions, StepCounts, drop_unknown, find_standstill
from analyzer.hang.flow import find_lost, find_queued, owes
from analyzer.hang.waits import MOST_BEHIND
from tests.analyzer.hang.build import WORLD, Job, Line, line, lines_of, reported, standing, steps_of, world
from tests.builders import SECOND, T0

PAIR = 9  # a communicator of ranks 1 and 3


def test_rank_that_never_entered_is_the_origin_unless_it_waits_elsewhere_or_moves() -> None:
    waits = Job(lines=world(r2=line(2, (4, 4, 4)))).trace()
    assert (waits.origins.tolist(), waits.waiting.tolist()) == ([2], [True, True, False, True])
    assert not waits.stuck
    lines = [*world(r1=line(1, (4, 4, 4)), r3=line(3, (4, 4, 4)))]
    pair = [line(0, (8, 8, 7), comm=PAIR, process=1), line(1, (7, 7, 7), comm=PAIR, process=3)]
    waits = Job(comms={PAIR: [1, 3]}, lines=[*lines, *pair]).trace()
    assert waits.origins.tolist() == [3], "rank 1 is ahead of everybody in another communicator, and waits there"
    waits = Job(lines=world(r2=line(2, (4, 4, 4), since_ns=T0))).trace()
    assert (waits.origins.tolist(), waits.circling.tolist()) == ([], [])
    lines = [line(rank, (1, 1, 0), func="Broadcast") for rank in range(3)] + [line(3, (4, 4, 4))]
    assert Job(lines=lines).trace().origins.tolist() == [3]


def test_operation_that_all_have_entered_is_stuck_and_those_who_left_wait_for_it() -> None:
    (stuck,) = Job(lines=world()).trace().stuck
    assert (stuck.number, stuck.members.tolist()) == (5, [0, 1, 2, 3])
    waits = Job(lines=world(r0=line(0, (6, 6, 5)), r1=line(1, (6, 6, 5)))).trace()
    (stuck,) = waits.stuck
    assert (stuck.number, stuck.members.tolist()) == (5, [2, 3])
    assert waits.origins.tolist() == []


def test_two_orders_of_entering_or_two_functions_are_a_circle() -> None:
    lines = world(r1=line(1, (4, 4, 4)), r3=line(3, (5, 5, 4)))
    pair = [line(0, (8, 8, 7), comm=PAIR, process=1), line(1, (7, 7, 7), comm=PAIR, process=3)]
    waits = Job(comms={PAIR: [1, 3]}, lines=[*lines, *pair]).trace()
    assert waits.circling.tolist() == [1, 3], "ranks 0 and 2 wait for the circle, and nobody waits for them"
    assert waits.origins.tolist() == []
    other = line(2, (5, 5, 4), func="AllGather")
    lines = [*world(r2=line(2, (4, 4, 4))), other, *(line(rank, (4, 4, 4), func="AllGather") for rank in (0, 1, 3))]
    assert Job(lines=lines).trace().circling.tolist() == [0, 1, 2, 3]


def test_send_and_receive_are_counted_per_peer_and_wait_for_the_sender() -> None:
    send = line(0, (3, 3, 2), func="Send", peer=1)
    others = [line(1, (9, 9, 9), func="Recv", peer=2), line(1, (2, 2, 2), func="Recv", peer=0)]
    assert Job(lines=[send, *others]).trace().origins.tolist() == [1]
    lines = [line(0, (1, 1, 0), func="Recv", peer=3), line(3, (4, 4, 4))]
    assert Job(lines=lines).trace().origins.tolist() == [3]


def test_counts_that_cannot_be_are_not_compared() -> None:
    far = MOST_BEHIND + 10
    lines = [line(rank, (far, far, far - 1)) for rank in range(3)] + [line(3, (4, 4, 4))]
    waits = Job(lines=lines).trace()
    assert (waits.origins.tolist(), waits.stuck, waits.circling.tolist()) == ([], (), [])
    waits = Job(lines=world(r3=line(3, (4, 3, 2)))).trace()
    assert (waits.frozen.tolist(), waits.origins.tolist()) == ([False, False, False, True], [3])


def test_members_of_whom_nothing_is_known_are_waited_for_after_those_behind() -> None:
    waits = Job(lines=world()[:2]).trace()
    assert (waits.missing.tolist(), waits.origins.tolist()) == ([2, 3], [])
    waits = Job(lines=[*world()[:2], line(2, (4, 4, 4), seen_ns=T0, since_ns=T0 - 9 * SECOND)]).trace()
    assert (waits.origins.tolist(), waits.missing.tolist()) == ([2], [])


OPTIONS = HangOptions()


def is_hang(job: Job, silent: frozenset[str] = frozenset()) -> bool:
    return find_standstill(job.progress, silent, OPTIONS).is_hang


def test_ranks_inside_an_operation_for_long_stand_still_whatever_their_clocks_say() -> None:
    off = [line(rank, (5, 5, 4), seen_ns=T0 - SECOND, since_ns=T0 - 11 * SECOND) for rank in range(2)]
    for lines in (world(), off):
        standstill = find_standstill(Job(lines=lines).progress, frozenset(), OPTIONS)
        assert (standstill.is_hang, standstill.since_ns) == (True, T0 - 10 * SECOND)


def test_pauses_and_movement_and_the_end_of_a_capture_are_no_hang() -> None:
    paused = Job(lines=[line(rank, (9, 4, 4)) for rank in range(4)])
    moving = Job(lines=[line(0, (5, 5, 4)), line(0, (9, 9, 9), func="AllGather", since_ns=T0)])
    ended = Job(lines=standing(1), facts={"interval_ns": 0})
    dumped = Job(lines=[line(rank, (5, 4, 4), since_ns=T0) for rank in range(4)], facts={"is_dump": True})
    assert [is_hang(each) for each in (paused, moving, ended, dumped)] == [False, False, False, True]


def test_waiting_is_no_hang_before_two_periods_and_a_pause_are_over() -> None:
    patience_ns = OPTIONS.patience_ns(SECOND, SECOND)
    assert patience_ns == 4 * SECOND
    alone = [Job(lines=[line(0, (5, 5, 4), since_ns=T0 - patience_ns + ns)]) for ns in (1, 0)]
    without_period = [Job(lines=standing(stood_s), facts={"period_ns": None}) for stood_s in (10, 61)]
    assert [is_hang(each) for each in (*alone, *without_period)] == [False, True, False, True]


def test_silent_host_is_not_heard() -> None:
    assert not is_hang(Job(lines=world()[:2]), frozenset({"h0"}))
    stale = [line(0, (5, 5, 4), seen_ns=T0 - 5 * SECOND, since_ns=T0 - 30 * SECOND), line(2, (5, 4, 4))]
    assert not is_hang(Job(lines=stale))
    assert is_hang(Job(lines=stale, facts={"reports": reported(h0=0)})), "its collector had nothing new to tell"


def test_lines_whose_starts_nobody_hears_are_left_out() -> None:
    lines = lines_of([line(0, (7, 0, 0), state="unknown"), line(1, (7, 1, 0), state="unknown"), line(2, (0, 0, 0))])
    assert drop_unknown(lines).rank.tolist() == [1, 2]


def job(steps: StepCounts = NO_STEPS) -> Job:
    """Rank 2 is inside a receive, and has enqueued operation 5 of the world behind it."""
    everybody = [line(rank, (5, 5, 4), state="recv_wait", open_ns=20) for rank in range(4)]
    receive = line(1, (3, 3, 2), comm=PAIR, process=2, func="Recv", peer=0, state="recv_wait", open_ns=10)
    send = line(0, (3, 3, 2), comm=PAIR, process=0, func="Send", peer=1, state="gpu_wait", open_ns=30)
    return Job(comms={PAIR: [0, 2]}, lines=[*everybody, receive, send], facts={"steps": steps})


def queued(of: Job) -> list[int]:
    facts = of.progress
    return np.flatnonzero(find_queued(facts, facts.lines, facts.lines.started > facts.lines.done)).tolist()


def test_operation_without_a_step_is_queued_behind_what_is_older() -> None:
    assert queued(job(steps_of((0, 1, 2, 0), (3, 0, 2, 2)))) == [2]
    assert queued(job(steps_of((0, 1, 2, 0), (2, 3, 2, 2)))) == []
    assert queued(job()) == []
    assert queued(job(steps_of((0, 1, 2, 2), seq=3))) == []  # every second operation may be sampled
    before, earlier = steps_of((0, 1, 2, 2), seq=3), steps_of((0, 1, 2, 2), seq=2)
    both = {name: np.concatenate([getattr(before, name), getattr(earlier, name)]) for name in vars(before)}
    assert queued(job(StepCounts(**both))) == [2]
    alone = job(steps_of((0, 1, 2, 0)))
    assert queued(replace(alone, lines=alone.lines[:4])) == []


def test_others_wait_for_who_queued_and_the_waiting_leads_to_what_keeps_it() -> None:
    waits = job(steps_of((0, 1, 2, 0), (3, 0, 2, 2))).trace()
    assert [waits.lines.func[each.members].tolist() for each in waits.stuck] == [["Recv", "Send"]]
    assert waits.lines.process[waits.behind].tolist() == [2]


def test_steps_in_flight_and_leads_are_told_by_channel_and_of_one_operation() -> None:
    lost, leads = find_lost(steps_of((0, 1, 6, 0), (1, 0, 2, 2), channel=3), WORLD, "AllReduce", 4)
    assert [(edge.src, edge.dst, edge.channel) for edge in lost] == [(0, 1, 3)]
    assert leads == {3: {0: 4, 1: 2}}
    steps = steps_of((0, 1, 6, 0))
    assert find_lost(steps, WORLD, "AllReduce", 5) == ([], {})
    assert find_lost(steps, WORLD + 1, "AllReduce", 4) == ([], {})
    assert find_lost(steps, WORLD, "AllGather", 4) == ([], {})


def test_only_who_is_behind_all_others_owes() -> None:
    assert owes({0: 2, 1: 1, 2: 2}, 1, without=0)
    assert not owes({0: 2, 1: 2, 2: 2}, 1, without=0)
    assert owes({0: -1, 2: 2}, 1, without=0)  # it did nothing, and the one before it is held up by that
    assert not owes({0: 2, 1: 0}, 1, without=0)  # nobody is left to compare with


def test_different_sizes_or_data_types_are_software_with_the_odd_rank_in_the_evidence() -> None:
    lines = [line(rank, (5, 5, 4), open_bytes=64 if rank == 3 else 32, open_dtype="ncclInt8") for rank in range(4)]
    (finding,) = Job(lines=lines).find()
    assert (finding.fault_class, finding.component, finding.may_isolate) == ("software", "job:j1", False)
    assert finding.evidence[0]["ranks"] == [3]
    called = "rank 3 called AllReduce number 5 with 64 bytes of ncclInt8, the others with 32 of ncclInt8"
    assert finding.reason == called
    lines = [line(rank, (5, 5, 4), open_dtype="ncclInt8" if rank else "ncclHalf") for rank in range(4)]
    assert [finding.fault_class for finding in Job(lines=lines).find()] == ["software"]


def ended(size: int, *ranks: int, seq: int = 4) -> Call:
    return Call((WORLD, "AllReduce", seq), size, "ncclInt8", len(ranks), ranks)


@pytest.mark.parametrize(
    ("lines", "calls", "odd"),
    [  # half: it is through with its part, and waits in the next one or computes
        (world(r3=line(3, (6, 6, 5), open_bytes=32)), (ended(16, 3),), 3),
        (world(r3=line(3, (5, 5, 5))), (ended(16, 3),), 3),
        # twenty times: the others are through and wait for it, or have ended more with what it sent too much
        ([line(rank, (6, 6, 5)) for rank in range(3)] + [line(3, (5, 5, 4))], (ended(32, 0, 1, 2),), 3),
        ([line(rank, (8, 8, 7)) for rank in range(3)] + [line(3, (5, 5, 4))], (ended(32, 0, 1, 2),), 3),
    ],
)
def test_size_is_compared_with_those_who_are_through(lines: list[Line], calls: tuple[Call, ...], odd: int) -> None:
    lines = [{"open_dtype": "ncclInt8"} | told for told in lines]
    for told in lines:
        if told["open_bytes"] < 0 and told["started"] > told["done"]:
            told |= {"open_bytes": 640 if told["rank"] == odd else 32, "open_dtype": "ncclInt8"}
    before = (ended(32, 0, 1, 2, 3, seq=3), ended(32, 0, 1, 2, 3, seq=2))
    (finding,) = Job(lines=lines, facts={"calls": (*before, *calls)}).find()
    assert (finding.fault_class, finding.component, finding.evidence[0]["ranks"]) == ("software", "job:j1", [odd])
    uneven = (ended(8, 0, 1, seq=3), ended(32, 2, 3, seq=3))
    found = Job(lines=lines, facts={"calls": (*uneven, *calls)}).find()
    assert all(finding.fault_class != "software" for finding in found), "operations before ended with uneven sizes"


@pytest.mark.parametrize("alike", [7, 8])
def test_rank_with_one_call_too_many_is_named_though_some_uneven_ones_ended(alike: int) -> None:
    """NCCL ended three operations in which rank 3 was one bucket behind the others, and stopped in the fourth."""
    before = [ended(32 * (1 + seq % 2), 0, 1, 2, 3, seq=seq) for seq in range(20 - alike, 20)]
    after = [
        call for seq in range(20, 23) for call in (ended(64 - seq, 0, 1, 2, seq=seq), ended(8 + seq, 3, seq=seq))
    ]
    lines = [line(rank, (24, 24, 23), open_bytes=4 if rank < 3 else 32, open_dtype="ncclInt8") for rank in range(4)]
    found = Job(lines=lines, facts={"calls": (*before, *after)}).find()
    assert [finding.fault_class == "software" for finding in found] == ([True] if alike == 8 else [])
    for finding in found:
        called = "rank 3 called AllReduce number 21 with 28 bytes of ncclInt8, the others with 44 of ncclInt8"
        assert (finding.evidence[0]["ranks"], finding.reason) == ([3], called)


def test_rank_that_left_out_one_collective_of_a_communicator_is_software() -> None:
    scatter, gather = {"func": "ReduceScatter"}, {"func": "AllGather"}
    lines = [line(rank, (5, 5, 5), **scatter) for rank in range(3)] + [line(3, (5, 5, 4), **scatter)]
    lines += [line(rank, (5, 5, 4), **gather) for rank in range(3)] + [line(3, (5, 5, 5), **gather)]
    (finding,) = Job(lines=lines).find()
    assert (finding.fault_class, finding.component) == ("software", "job:j1")
    assert (finding.evidence[0]["ranks"], finding.evidence[0]["fewer"]) == ([3], "ReduceScatter")
    assert finding.reason.startswith("rank 3 has ended fewer ReduceScatter and more AllGather than the others")
    in_order = [line(rank, (5, 5, 5 if rank else 4), **scatter) for rank in range(4)]
    in_order += [line(rank, (5, 5, 4), **gather) for rank in range(4)]
    assert [finding.fault_class for finding in Job(lines=in_order).find()] != ["software"]


def test_circle_is_software_and_blames_no_hardware() -> None:
    pair = [line(0, (8, 8, 7), comm=PAIR, process=1), line(1, (7, 7, 7), comm=PAIR, process=3)]
    lines = [*world(r1=line(1, (4, 4, 4)), r3=line(3, (5, 5, 4))), *pair]
    (finding,) = Job(comms={PAIR: [1, 3]}, lines=lines).find()
    assert (finding.fault_class, finding.component) == ("software", "job:j1")
    assert finding.evidence[0] == {"kind": "circle", "ranks": [1, 3], "comms": [f"{7:016x}", f"{PAIR:016x}"]}


def ring(holder: int) -> list[dict[str, object]]:
    """Every rank waits for data of the one before, but one has data that it does not take."""
    waits = [line(rank, (5, 5, 4), state="recv_wait", head_peer=(rank - 1) % 4, head_channel=0) for rank in range(4)]
    waits[holder] |= {"state": "recv_gpu_wait"}
    return waits


def test_rank_that_holds_what_it_received_is_named_by_its_host() -> None:
    (finding,) = Job(lines=ring(2)).find()
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "host:h1")
    assert finding.ambiguous_with == ("gpu:h1/0",)
    (finding,) = Job(lines=ring(2), facts={"reports": reported(h1=0)}).find()
    assert (finding.component, finding.ambiguous_with) == ("gpu:h1/0", ("host:h1",)), "a stop would have been told"
    send = line(0, (3, 3, 2), func="Send", peer=2, state="wire", head_peer=2, head_channel=0)
    recv = line(2, (3, 3, 2), func="Recv", peer=0, state="recv_gpu_wait", head_peer=0, head_channel=0)
    assert Job(lines=[send, recv]).blamed == ["host:h1"]
    behind = line(0, (3, 2, 2), comm=PAIR, process=2)  # its host has enqueued what its GPU does not come to
    (finding,) = Job(comms={PAIR: [2, 3]}, lines=[*ring(2), behind, line(1, (2, 2, 2), comm=PAIR, process=3)]).find()
    assert (finding.component, finding.likelihood) == ("gpu:h1/0", 0.7)


def test_rank_that_alone_is_still_sending_what_all_others_have_got_is_named() -> None:
    """It died or was stopped without an event: its own word is as old as that. One that receives may lack data."""

    def named(state: str, peer: int, others_done: int = 5) -> list[str]:
        others = [
            line(rank, (6, 6, others_done), state="recv_wait", head_peer=0, head_channel=0) for rank in (1, 2, 3)
        ]
        lines = [line(0, (5, 5, 4), state=state, head_peer=peer, head_channel=0), *others]
        return [finding.component for finding in Job(lines=lines).find()]

    assert named("wire", 1) == ["host:h0"]
    assert "host:h0" not in named("recv_wait", 3) + named("wire", 1, others_done=4)


def waiting(**states: tuple[str, int]) -> list[dict[str, object]]:
    """All are inside the same operation, each with what it waits for and which rank that is about."""
    told = {int(rank[1:]): state for rank, state in states.items()}
    return [
        line(rank, (5, 5, 4), state=state, head_peer=peer, head_channel=0) for rank, (state, peer) in told.items()
    ]


def test_waiting_is_followed_to_the_gpu_that_neither_takes_nor_sends() -> None:
    ends = {"r2": ("gpu_wait", 3), "r3": ("recv_wait", 2)}
    (finding,) = Job(lines=waiting(r0=("recv_wait", 3), r1=("wire", 2), **ends)).find()
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "gpu:h1/0")
    (finding,) = Job(lines=waiting(r0=("gpu_wait", 1), r1=("peer_wait", 2), r2=("recv_gpu_wait", 1))).find()
    assert finding.ambiguous_with == ("gpu:h1/0",), "a tree: who waits for room waits for it as well"
    inside = {"r2": ("recv_gpu_wait", 1), "r3": ("gpu_wait", 0)}
    (finding,) = Job(lines=waiting(r0=("recv_wait", 3), r1=("wire", 2), **inside)).find()
    assert finding.ambiguous_with == ("gpu:h1/0",), "what its neighbour lacks comes from it, inside of the host"


def test_rank_is_found_whose_neighbour_on_the_host_waits_for_others() -> None:
    """A tree: rank 2 does not take what it has; rank 3 beside it waits for rank 0, which gets nothing from rank 1."""
    tree = waiting(r0=("gpu_wait", 3), r1=("recv_wait", 2), r2=("recv_gpu_wait", 1), r3=("recv_wait", 0))
    (finding,) = Job(lines=tree).find()
    assert (finding.fault_class, finding.ambiguous_with) == ("noncomm_hang", ("gpu:h1/0",))


def test_waiting_that_ends_at_two_hosts_names_neither() -> None:
    assert Job(lines=waiting(r0=("gpu_wait", 3), r1=("idle", -1), r2=("gpu_wait", 1), r3=("idle", -1))).find() == []
    leads_away = waiting(r0=("recv_wait", 7), r1=("wire", 2), r2=("gpu_wait", 1), r3=("idle", -1))
    assert Job(lines=leads_away).find() == [], "one waits for somebody else"


def kernels(*states: str, **told: object) -> list[dict[str, object]]:
    """All are inside the same operation without steps; of its kernels it is known which have begun."""
    return [line(rank, (11, 11, 4), state=state, **told) for rank, state in enumerate(states)]


BEGUN, LATE = "kernel_begun", "kernel_wait"


def test_gpu_that_never_came_to_an_operation_without_steps_is_named() -> None:
    (finding,) = Job(lines=kernels(BEGUN, BEGUN, LATE, BEGUN), facts={"reports": reported(h1=0)}).find()
    assert (finding.fault_class, finding.component) == ("noncomm_hang", "gpu:h1/0")
    assert finding.ambiguous_with == ("host:h1",)
    (finding,) = Job(lines=kernels(BEGUN, BEGUN, LATE, LATE)).find()
    assert (finding.component, finding.evidence[-1]["ranks"]) == ("host:h1", [2, 3])
    assert finding.ambiguous_with == ("gpu:h1/0", "gpu:h1/1")
    send = line(2, (3, 3, 2), func="Send", peer=0, state=LATE)
    assert Job(lines=[send, line(0, (3, 3, 2), func="Recv", peer=2, state=BEGUN)]).blamed == ["host:h1"]


@pytest.mark.parametrize(
    "states", [(BEGUN,) * 4, (LATE,) * 4, (BEGUN, "unknown", LATE, BEGUN), (LATE, BEGUN, LATE, BEGUN)]
)
def test_nobody_is_named_by_kernels_where_all_began_or_wait_or_one_is_unknown(states: tuple[str, ...]) -> None:
    assert Job(lines=kernels(*states)).find() == []


def test_ranks_of_one_host_that_all_wait_for_their_gpus_are_not_waited_for() -> None:
    pair = [line(rank, (8, 8, 7), comm=PAIR, process=2 + rank, state=LATE) for rank in (0, 1)]
    assert Job(comms={PAIR: [2, 3]}, lines=pair).find() == []


def test_gpu_that_is_in_the_kernel_of_another_operation_waits_there() -> None:
    """Rank 2 comes to nothing because it is inside the pair's operation, which rank 3 has not begun."""
    pair = [
        line(rank, (8, 8, 7), comm=PAIR, process=2 + rank, state=state) for rank, state in ((0, BEGUN), (1, LATE))
    ]
    (finding,) = Job(comms={PAIR: [2, 3]}, lines=[*kernels(BEGUN, BEGUN, LATE, LATE), *pair]).find()
    assert finding.evidence[-1]["ranks"] == [3]


def test_operation_of_which_nothing_more_is_known_is_left_unexplained() -> None:
    assert Job(lines=world()).find() == []
