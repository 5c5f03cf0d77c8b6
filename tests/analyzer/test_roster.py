"""A roster knows every process of a job once, whichever communicators tell of it."""

import numpy as np
import pyarrow as pa

from analyzer.windows.jobs import NOBODY, Roster, build_roster
from tests.analyzer.looking import MEMBER

WORLD, PAIR = 2**63 + 5, 7


def member(comm: int, rank: int, host: str, world_rank: int | None, **fields: object) -> dict[str, object]:
    usual = {"nranks": 4, "nnodes": 2, "pid": 100 + rank, "gpu": rank % 2, "init_ns": 5}
    return {"comm": comm, "rank": rank, "host": host, "world_rank": world_rank, **usual, **fields}


def roster(*rows: dict[str, object]) -> Roster:
    return build_roster(pa.Table.from_pylist(list(rows), schema=MEMBER))


def find(known: Roster, comm: int, rank: int) -> int:
    return int(known.find(np.array([comm], np.uint64), np.array([rank]))[0])


def test_process_of_two_communicators_is_counted_once() -> None:
    known = roster(
        *(member(WORLD, rank, f"h{rank // 2}", rank) for rank in range(4)), member(PAIR, 0, "h1", 3, gpu=1)
    )
    assert (len(known), known.ranks, known.nodes, known.hosts) == (4, 4, 2, frozenset({"h0", "h1"}))
    assert find(known, PAIR, 0) == find(known, WORLD, 3) == 3
    assert known.process(3).gpu_name == "gpu:h1/1"


def test_unknown_ranks_are_nobody() -> None:
    known = roster(member(WORLD, 1, "h0", 1))
    assert [find(known, WORLD, 0), find(known, WORLD, -1), find(known, PAIR, 1)] == [NOBODY] * 3
    assert known.members(WORLD).tolist() == [NOBODY, 0]
    assert known.ranks == 4, "its communicator counts four"


def test_processes_without_world_rank_are_told_apart_by_host_and_process_id() -> None:
    known = roster(member(WORLD, 0, "h0", None), member(WORLD, 1, "h1", None), member(PAIR, 0, "h0", None))
    assert len(known) == 2
    assert find(known, PAIR, 0) == find(known, WORLD, 0)


def test_newest_row_of_a_rank_says_where_it_is() -> None:
    known = roster(member(WORLD, 0, "h0", 0), member(WORLD, 0, "h9", 0, init_ns=9))
    assert known.process(find(known, WORLD, 0)).host == "h9"


def test_job_without_communicators_has_nobody() -> None:
    known = roster()
    assert (len(known), known.ranks, find(known, WORLD, 0)) == (0, 0, NOBODY)


def test_places_of_a_process_are_all_its_ranks_in_communicators() -> None:
    known = roster(*(member(WORLD, rank, "h0", rank) for rank in range(4)), member(PAIR, 0, "h0", 3))
    comms, ranks = known.seats([3])
    assert sorted(zip(comms.tolist(), ranks.tolist(), strict=True)) == [(PAIR, 0), (WORLD, 3)]


def test_job_is_a_dump_when_nobody_but_flight_recorders_told_of_it() -> None:
    dumped = [member(WORLD, rank, "h0", rank, plugin_version="flight-recorder 2.7") for rank in range(2)]
    assert roster(*dumped).is_dump
    assert not roster(*dumped, member(WORLD, 2, "h1", 2, plugin_version="1.0")).is_dump
    assert not roster(*dumped, member(WORLD, 2, "h1", 2)).is_dump
    assert not roster().is_dump
