"""An operation that all have entered names what holds it up, or nothing."""

from tests.analyzer.hang.build import Job, line, world

PAIR = 9


def test_different_sizes_are_software_with_the_odd_rank_in_the_evidence() -> None:
    lines = [line(rank, (5, 5, 4), open_bytes=64 if rank == 3 else 32, open_dtype="ncclInt8") for rank in range(4)]
    (finding,) = Job(lines=lines).find()
    assert (finding.fault_class, finding.component, finding.may_isolate) == ("software", "job:j1", False)
    assert finding.evidence[0]["ranks"] == [3]
    assert (
        finding.reason == "rank 3 called AllReduce number 5 with 64 bytes of ncclInt8, the others with 32 of ncclInt8"
    )


def test_different_data_types_are_software() -> None:
    lines = [line(rank, (5, 5, 4), open_dtype="ncclInt8" if rank else "ncclHalf") for rank in range(4)]
    assert [finding.fault_class for finding in Job(lines=lines).find()] == ["software"]


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
    assert (finding.fault_class, finding.component, finding.ambiguous_with) == (
        "noncomm_hang",
        "host:h1",
        ("gpu:h1/0",),
    )


def test_where_a_collector_would_have_told_of_a_stop_the_gpu_is_named() -> None:
    (finding,) = Job(lines=ring(2), facts={"last_seen_ns": {"h1": 1}}).find()
    assert (finding.component, finding.ambiguous_with) == ("gpu:h1/0", ("host:h1",))


def test_receiver_that_does_not_take_what_was_sent_to_it_is_named() -> None:
    send = line(0, (3, 3, 2), func="Send", peer=2, state="wire", head_peer=2, head_channel=0)
    recv = line(2, (3, 3, 2), func="Recv", peer=0, state="recv_gpu_wait", head_peer=0, head_channel=0)
    (finding,) = Job(lines=[send, recv]).find()
    assert finding.component == "host:h1"


def test_operation_of_which_nothing_more_is_known_is_left_unexplained() -> None:
    assert Job(lines=world()).find() == []
