"""What no honest agent says is refused with its row; what honest ones say at their most is taken."""

import pytest

from api.ingest.checking import Arrival, CheckLimits, Tally, check_group
from api.ingest.log import Entry
from lockstep.batches import encode_batch
from lockstep.bounds import BOUNDS, keep_within
from lockstep.records import Agent, Comm, Event, FabricCounter, HostRecord, Progress
from lockstep.tables import TABLES
from tests.builders import SECOND, T0, make, rows

LIMITS = CheckLimits(max_bytes=64 << 20, max_rows=100_000)
AHEAD = T0 + BOUNDS.ahead_ns
PORT = make(FabricCounter, host="h1", switch="leaf1", port="1", up=True, extra={})


def arrival(*records: HostRecord, is_fabric: bool = False, received_ns: int = T0) -> Arrival:
    kinds = {table.name: [each for each in records if type(each) is table.record] for table in TABLES}
    body = encode_batch({name: rows(*found) for name, found in kinds.items() if found})
    return Arrival(Entry("h1", "b1", 1, received_ns, body), LIMITS, is_fabric)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (
            make(Event, host="h1", ts_ns=AHEAD + SECOND),
            f"row 0: ts_ns is {AHEAD + SECOND}, more than an hour ahead of {T0}: set",
        ),
        (make(Comm, host="h1", destroy_ns=2**62), "destroy_ns is"),
        (make(Comm, host="h1", rank=4), "rank is 4, which a communicator of its size cannot have"),
        (make(Comm, host="h1", nranks=4, nnodes=5), "nnodes is 5, which"),
        (make(Comm, host="h1", nranks=2**31, nnodes=1), "nranks is 2147483648, which"),
        (make(Comm, host="h1", rank=2**32 - 1, nranks=2**32 - 1), "rank is 4294967295, and must be below 1048576"),
        (make(Progress, host="h1", rank=2**32 - 1, head_state="idle"), "rank is 4294967295"),
        (make(Comm, host="h1", job="a\nb"), "job is 'a\\nb', too long, or with control characters"),
        (make(Comm, host="h1", name="\x1b[2J"), "name is '"),
        (make(Comm, host="h1", name="a\u202eb"), "name is '"),
        (make(Comm, host="h1", job="a" * 1025), "job is 'aaa"),
        (make(Event, host="h1", component="gpu:h3/0"), "h1 reports on 'gpu:h3/0', which is not its own"),
        (make(Event, host="h1", component="gpu:h10/0"), "h1 reports on 'gpu:h10/0'"),
        (make(Event, host="h1", component="switch:leaf1"), "h1 reports on 'switch:leaf1'"),
        (make(Event, host="h1", source="gateway"), "only the gateway itself"),
        (PORT, "h1 reports on switches, which needs a token of scope fabric"),
    ],
)
def test_what_no_honest_agent_says_is_refused_and_neighbours_pass(record: HostRecord, reason: str) -> None:
    neighbour = Arrival(Entry("h2", "b1", 1, T0, encode_batch({"events": rows(make(Event, host="h2"))})), LIMITS)
    (verdict, other), taken = check_group([arrival(make(Agent, host="h1"), record), neighbour])
    assert verdict is not None
    assert reason in str(verdict)
    assert (other, [table["host"].to_pylist() for table in taken.values()]) == (None, [["h2"]])


def test_a_collector_leaves_out_what_would_have_all_of_its_host_refused() -> None:
    members = (make(Comm, rank=9), make(Comm, rank=1), make(Comm, init_ns=AHEAD + 1, rank=2), make(Comm, job="a\nb"))
    assert keep_within("comms", rows(*members), T0)["rank"].to_pylist() == [1]


def test_what_honest_hosts_say_at_their_most_is_taken() -> None:
    honest = (
        make(Event, host="h1", ts_ns=AHEAD),
        make(Event, host="h1", component="nic:h1/mlx5_0", message="line\twith \x1b[1m of a driver"),
        make(Event, host="h1", component="rank:7"),
        make(Event, host="h1", component="nic:h9/eth0", source="probes", kind="probe_silent"),
        make(Comm, host="h1", job="größe 実験", rank=3),
    )
    assert check_group([arrival(*honest)])[0] == [None]
    fabric = (PORT, make(Event, host="h1", component="switch:leaf1"))
    assert check_group([arrival(*fabric, is_fabric=True)])[0] == [None]


def test_a_host_tells_of_so_many_jobs_and_communicators_a_minute() -> None:
    tally = Tally()
    many = [make(Comm, host="h1", job=f"j{number}") for number in range(BOUNDS.jobs)]
    assert check_group([arrival(*many)], tally)[0] == [None]
    assert check_group([arrival(*many[:9])], tally)[0] == [None], "the same ones again"
    one_more = make(Comm, host="h1", job="more")
    (verdict,), taken = check_group([arrival(one_more)], tally)
    assert (str(verdict), verdict and verdict.status) == ("h1 reports more than 256 jobs in a minute", 429)
    assert not taken
    assert check_group([arrival(one_more, received_ns=T0 + 60 * SECOND)], tally)[0] == [None]
    (alone,), _ = check_group([arrival(*many, one_more, received_ns=T0 + 120 * SECOND)], tally)
    assert alone is not None
    assert alone.status == 400, "waiting would not help"
    comms = [make(Comm, host="h1", comm=number) for number in range(BOUNDS.comms + 1)]
    (verdict,), _ = check_group([arrival(*comms, received_ns=T0 + 180 * SECOND)], tally)
    assert str(verdict) == "h1 reports more than 16384 comms in a minute"
