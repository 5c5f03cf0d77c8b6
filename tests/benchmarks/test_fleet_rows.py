"""What simulated agents send is sound, within a host's budget, and as varied as real telemetry."""

from collections import Counter, defaultdict

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from benchmarks.fleet_head import GPUS_PER_HOST, Group, plan_host
from benchmarks.fleet_rows import HostRows
from benchmarks.fleet_sender import BATCH_SECONDS, encode_bodies
from cli.store import PER_HOST
from lockstep.arrow import conform, find_duplicate
from lockstep.batches import decode_batch
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME

SECOND = 1_763_000_000
DENSE, EXPERT, SHARED_NIC = 0, 32, 72
HOSTS = (DENSE, EXPERT, 40, SHARED_NIC)


@pytest.mark.parametrize("host", HOSTS)
def test_rows_fit_their_tables_and_repeat_no_key(host: int) -> None:
    tables = HostRows(plan_host(host)).tables(SECOND, 3)
    for name, rows in tables.items():
        conform(TABLE_BY_NAME[name], rows)
        assert find_duplicate(TABLE_BY_NAME[name], rows) is None, name
        assert pc.unique(rows["host"]).to_pylist() == [plan_host(host).name]


def test_a_batch_stays_within_the_budget_of_a_host_and_experts_send_several_times_the_rows() -> None:
    bodies = {host: list(encode_bodies(host, SECOND, 2 * BATCH_SECONDS)) for host in HOSTS}
    for body in (body for some in bodies.values() for body in some):
        assert 300 < body.rows / BATCH_SECONDS <= 2_000
        assert len(body.content) / BATCH_SECONDS <= 100_000
    assert bodies[EXPERT][0].rows > 3 * bodies[DENSE][0].rows


def test_each_body_holds_the_seconds_between_two_readings_and_as_many_rows_as_it_says() -> None:
    bodies = list(encode_bodies(DENSE, SECOND, 3 * BATCH_SECONDS))
    assert len(bodies) == 3
    for number, body in enumerate(bodies):
        tables = decode_batch(body.content, 1 << 30, 10_000)
        times = [(SECOND + number * BATCH_SECONDS + second) * NS_PER_S for second in range(BATCH_SECONDS)]
        assert sum(rows.num_rows for rows in tables.values()) == body.rows
        assert pc.unique(tables["transfer_stats"]["ts_ns"]).to_pylist() == times
        assert tables["agents"]["ts_ns"].to_pylist() == times


def test_the_same_seconds_give_the_same_rows_and_others_give_others() -> None:
    first, again, later = (HostRows(plan_host(DENSE)).tables(second, 2) for second in (SECOND, SECOND, SECOND + 2))
    for name, rows in first.items():
        assert rows.equals(again[name]), name
        assert not rows.equals(later[name]), name


def test_measured_values_are_not_constants_and_only_senders_have_a_wire_time() -> None:
    tables = HostRows(plan_host(DENSE)).tables(SECOND, 4)
    for table, column in {
        "op_stats": "dur_sum_ns",
        "transfer_stats": "gpu_wait_ns",
        "transfers": "first_ns",
        "collectives": "start_ns",
        "nic_counters": "tx_bytes",
        "progress": "ts_ns",
    }.items():
        values = tables[table][column].combine_chunks()
        assert len(pc.unique(values)) > 0.9 * len(values), table
    rows = HostRows(plan_host(DENSE)).tables(SECOND, 1)["transfer_stats"]
    is_send = pc.equal(rows["direction"], "send")
    assert pc.is_valid(rows["wire_ns"]).equals(pa.chunked_array([is_send.combine_chunks()]))


FLEET = [plan_host(number) for number in range(1_280)]


def _members() -> dict[int, dict[int, tuple[int, Group]]]:
    members: dict[int, dict[int, tuple[int, Group]]] = defaultdict(dict)
    for plan in FLEET:
        for group in plan.groups:
            assert group.rank not in members[group.comm], "two ranks of one number in a communicator"
            members[group.comm][group.rank] = (plan.number, group)
    return members


def test_full_fleet_has_whole_dense_jobs_of_three_layouts_and_experts_who_exchange_with_all_others() -> None:
    sizes = Counter(plan.job for plan in FLEET)
    kinds = {plan.job: tuple(sorted({group.kind for group in plan.groups})) for plan in FLEET}

    assert sizes.pop("moe-0") == 128
    assert set(sizes.values()) == {32}
    assert Counter(kinds.values()) == {("dp", "pp", "tp"): 24, ("dp", "tp"): 12, ("dp", "ep"): 1}
    experts = [group for group in plan_host(32).groups if group.kind == "ep"]
    assert [group.rank for group in experts] == list(range(GPUS_PER_HOST))
    assert all(group.next_peers == tuple(range(8, 64)) for group in experts)
    assert Counter(plan.job for plan in FLEET[:64])["moe-0"] == 8


def test_every_communicator_is_complete() -> None:
    for ranks in _members().values():
        nranks = {group.nranks for _, group in ranks.values()}
        assert nranks == {len(ranks)}
        assert sorted(ranks) == list(range(len(ranks)))


def test_each_send_to_another_host_is_a_receive_there() -> None:
    pairs = 0
    for ranks in _members().values():
        for rank, (host, group) in ranks.items():
            for peer in group.next_peers:
                other_host, other = ranks[peer]
                assert other_host != host
                assert rank in other.previous_peers
                pairs += 1
            assert all(rank in ranks[peer][1].next_peers for peer in group.previous_peers)
    assert pairs > 10_000


def test_the_store_is_planned_by_as_many_rows_as_a_host_sends() -> None:
    sent = Counter[str]()
    for number in range(80):
        sent.update({name: len(rows) for name, rows in HostRows(plan_host(number)).tables(SECOND, 1).items()})
    rolled_up = {"operations", "rank_minutes", "wire_minutes"}
    planned = {name: measured.rows_per_s for name, measured in PER_HOST.items() if name not in rolled_up}
    assert {name: round(count / 80, 1) for name, count in sent.items()} == planned
