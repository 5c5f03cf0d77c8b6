"""A large job made of a small one has hosts, rings and peers as one of that size has, and the fault where it was."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.analyze_window import (
    ABSENT,
    HEALTHY,
    HUNG,
    SLOW,
    START_NS,
    Scene,
    Small,
    begin_of,
    find_missing,
    read_dumps,
    repeat_hosts,
    run_their_analyser,
    scene_topology,
    simulate,
    write_dumps,
)
from lockstep.clock import NS_PER_S

HOSTS = 40


@pytest.fixture(scope="module")
def small() -> Small:
    return simulate(SLOW)


def large(small: Small, table: str) -> pa.Table:
    return pa.concat_tables(repeat_hosts(small.tables[table], HOSTS, small.rings))


def test_every_rank_is_once_in_its_ring_and_in_the_host_that_its_number_says(small: Small) -> None:
    rows = large(small, "comms")
    in_ring = np.isin(rows["comm"].to_numpy(), small.rings)
    assert rows.num_rows == 2 * HOSTS * 8
    assert sorted(rows["world_rank"].to_numpy()[in_ring]) == list(range(HOSTS * 8))
    assert set(rows["nranks"].to_numpy()[in_ring]) == set(rows["nnodes"].to_numpy()[in_ring]) == {HOSTS}
    assert set(rows["nranks"].to_numpy()[~in_ring]) == {8}
    assert len(set(rows["comm"].to_numpy()[~in_ring])) == HOSTS
    assert len(set(rows["gpu_uuid"].to_pylist())) == HOSTS * 8
    assert rows["host"].to_pylist() == [f"h{rank // 8}" for rank in rows["world_rank"].to_pylist()]


def test_ring_is_closed_over_all_hosts_and_the_fault_stays_on_its_nic(small: Small) -> None:
    rows = large(small, "transfer_stats").filter(pa.compute.field("direction") == "send")
    chosen = rows["comm"].to_numpy() == small.rings[0]
    after = dict(zip(rows["rank"].to_numpy()[chosen], rows["peer"].to_numpy()[chosen], strict=True))
    assert after == {rank: (rank + 1) % HOSTS for rank in range(HOSTS)}
    delay = rows["wire_ns"].to_numpy() / rows["bytes"].to_numpy()
    slow = delay > 2.5 * np.median(delay)
    ends = list(zip(rows["host"].to_pylist(), rows["nic"].to_pylist(), strict=True))
    assert len(set(ends)) == HOSTS * 8
    assert {end for end, is_slow in zip(ends, slow, strict=True) if is_slow} == {("h3", "eth3")}


def test_columns_are_those_of_the_tables_and_the_window_is_the_last_five_complete_seconds(small: Small) -> None:
    for name in ("comms", "progress", "op_stats", "transfers", "gpu_health", "agents", "connections"):
        assert large(small, name).schema == small.tables[name].schema
    assert (small.window.seconds, small.window.end_ns) == (5, max(small.tables["agents"]["watermark_ns"].to_pylist()))


def test_a_hang_is_told_from_its_beginning_and_a_slow_job_from_its_window_on(small: Small) -> None:
    assert begin_of(Scene(1_024, HUNG), small.window) == START_NS
    assert begin_of(Scene(1_024, SLOW), small.window) == small.window.start_ns
    assert begin_of(Scene(1_000_000, SLOW, only_statistics=True), small.window) == small.window.end_ns - NS_PER_S


def test_scene_has_its_fabric_and_a_million_ranks_have_none() -> None:
    fabric = scene_topology(Scene(64 * 8, HEALTHY))
    assert fabric is not None
    assert len(fabric.hosts) == 64
    assert scene_topology(Scene(1_000_000, HEALTHY, only_statistics=True)) is None


RANKS = 64


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dumps")
    write_dumps(folder, RANKS)
    return folder


def test_every_rank_is_told_of_and_all_wait_for_the_absent_one_which_waits_for_nobody(dumps: Path) -> None:
    rows = read_dumps(dumps).tables()["progress"].to_pylist()
    waiting = {(row["host"], row["comm"]) for row in rows if row["enqueued"] > row["done"]}
    hosts = {host for host, _ in waiting}
    assert f"rank-{ABSENT}" not in hosts
    assert len(hosts) == RANKS - 1
    assert len({comm for _, comm in waiting}) == 1 + 8, "the group of its host, and the ring of each GPU's place"
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
