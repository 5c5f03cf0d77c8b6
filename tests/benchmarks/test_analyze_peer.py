"""Dumps tell the hang that they should, to PyTorch's analyser and to ours."""

from pathlib import Path

import pytest

from benchmarks.analyze_peer import ABSENT, find_missing, read_dumps, run_their_analyser, write_dumps

RANKS = 64


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    write_dumps(folder, RANKS)
    return folder


def test_absent_rank_waits_for_nobody_its_host_waits_for_it_and_the_rest_one_group_further(dumps: Path) -> None:
    rows = read_dumps(dumps).tables()["progress"].to_pylist()
    waiting = {(row["host"], row["comm"]) for row in rows if row["enqueued"] > row["done"]}
    hosts = {host for host, _ in waiting}
    assert f"rank-{ABSENT}" not in hosts
    assert len(hosts) == RANKS - 1
    assert len({comm for _, comm in waiting}) == 1 + 8, "the group of its host, and the ring of each GPU's place"


def test_every_rank_is_told_of(dumps: Path) -> None:
    assert len(read_dumps(dumps).tables()["comms"]) == 2 * RANKS


def test_missing_ranks_are_read_off_what_is_printed() -> None:
    assert find_missing("missing ranks: {26}\nmissing ranks: {3, 4}\nexpected ranks: {9}") == {3, 4, 26}
    assert find_missing("nothing") == frozenset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")  # torch's own, on import
def test_their_analyser_finds_the_absent_rank_among_others(dumps: Path) -> None:
    cost = run_their_analyser(dumps, RANKS)
    assert ABSENT in cost.named
    assert cost.cpu_s > 0
