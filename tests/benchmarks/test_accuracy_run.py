"""The peers' rules do what their descriptions say: rows, columns and cells; the rank that waits least."""

from benchmarks.accuracy_run import Blame, confirm, find_hot, find_least_waiting

NORMAL = {(source, target): 1.0 for source in "abcdef" for target in "abcdef" if source != target}
Row = dict[str, object]


def test_hot_row_is_a_slow_sender() -> None:
    assert find_hot(NORMAL | {("c", target): 3.0 for target in "abdef"}) == {Blame("host:c", "tx")}


def test_hot_column_is_a_slow_receiver() -> None:
    slow = {(f"{source}/e", "c/e"): 3.0 for source in "abd"}
    assert find_hot(
        {(f"{a}/e", f"{b}/e"): 1.0 for a, b in NORMAL} | slow | {("e/e", "c/e"): 3.0, ("f/e", "c/e"): 3.0}
    ) == {Blame("nic:c/e", "rx")}


def test_lone_hot_cell_is_a_link() -> None:
    assert find_hot(NORMAL | {("c", "d"): 3.0}) == {Blame("link:c--d")}


def test_matrix_without_hot_cells_names_nobody() -> None:
    assert find_hot(NORMAL) == find_hot({}) == set()


def waits(slow: int, *waited: int, operations: int = 100) -> dict[int, list[Row]]:
    """Windows 0 to 3 at full pace, then some at a slower one in which ranks wait as long as told."""
    usual = [
        {"host": f"h{rank}", "gpu": 0, "world": rank, "waited": 50, "operations": 100} for rank in range(len(waited))
    ]
    after = [row | {"waited": time, "operations": operations} for row, time in zip(usual, waited, strict=True)]
    return {window: usual if window < 4 else after for window in range(4 + slow)}


def test_rank_that_waits_least_in_a_slow_window_is_named_by_all_its_names() -> None:
    found = find_least_waiting(waits(1, 90, 9, 90, operations=60), margin=10.0)
    assert found[4] == {Blame("gpu:h1/0", None, ("host:h1", "rank:1"))}
    assert found[3] == set(), "the job runs at its usual pace"


def test_margin_keeps_the_rule_silent() -> None:
    least = waits(1, 90, 50, 90, operations=60)
    assert find_least_waiting(least, margin=10.0)[4] == set()
    assert len(find_least_waiting(least, margin=1.0)[4]) == 1


def test_job_at_its_usual_pace_has_nobody_to_blame() -> None:
    assert find_least_waiting(waits(1, 90, 1, 90), margin=1.0)[4] == set()


def test_what_two_windows_in_succession_show_is_told_at_the_end_of_the_second() -> None:
    blame = Blame("nic:h3/eth1", "tx")
    (named,) = confirm({0: {blame}, 1: set(), 2: {blame}, 3: {blame}, 4: {blame}}, start_ns=0)
    assert (named.component, named.side, named.opened_s, named.last_seen_s) == ("nic:h3/eth1", "tx", 20.0, 25.0)
    assert named.fault_class == "comm_slow"
