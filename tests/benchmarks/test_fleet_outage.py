"""What was acknowledged must be there once; what was not may be there or not."""

from benchmarks.fleet_outage import Ledger, find_differences, rows_per_batch
from benchmarks.fleet_sender import Sent


def _sent(host: int, number: int, is_taken: bool) -> Sent:
    return Sent(host, number, due_ns=1, sent_ns=2, acked_ns=3 * is_taken, tries=1, rows=5, bytes=6)


def test_a_batch_without_a_receipt_may_be_in_the_store_or_not() -> None:
    ledger = Ledger()
    ledger.add([_sent(0, 1, True), _sent(0, 2, True), _sent(0, 3, False), _sent(9, 1, True)])

    agents = ledger.expected()["agents"]
    assert agents == {"h00000": (2, 3), "h00009": (1, 1)}
    assert ledger.taken == 3


def test_every_table_of_a_batch_is_expected() -> None:
    ledger = Ledger()
    ledger.add([_sent(0, 1, True)])
    expected = {table: hosts["h00000"] for table, hosts in ledger.expected().items()}
    assert expected == {table: (rows, rows) for table, rows in rows_per_batch(0).items()}


def test_a_lost_row_in_one_table_and_a_double_in_another_do_not_cancel_out() -> None:
    expected = {"agents": {"h1": (3, 3)}, "progress": {"h1": (30, 30)}}
    assert find_differences(expected, {"agents": {"h1": 3}, "progress": {"h1": 30}}) == (0, 0)
    assert find_differences(expected, {"agents": {"h1": 4}, "progress": {"h1": 29}}) == (1, 1)
    assert find_differences(expected, {"agents": {"h1": 3}}) == (30, 0)
