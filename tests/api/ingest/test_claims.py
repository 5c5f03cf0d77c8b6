"""A rank is its first host's: nobody else's rows of it are kept, and a second claim is told."""

from collections.abc import Mapping

import pyarrow as pa

from api.ingest.claims import Claims
from lockstep.records import Comm, Connection, Event, Progress
from lockstep.store.store import Parameters
from tests.api.fake_store import FakeStore
from tests.builders import SECOND, T0, make, rows


class Held(FakeStore):
    """A store that knows some claims and counts how often it is asked."""

    def __init__(self, *known: Comm) -> None:
        super().__init__()
        self.asked: list[list[int]] = []
        self._known = rows(*known) if known else rows(make(Comm))[:0]

    def query(self, sql: str, parameters: Parameters | None = None) -> pa.Table:
        self.asked.append((parameters or {})["comms"])
        return self._known


def progress(host: str, rank: int = 0, **fields: object) -> Progress:
    return make(Progress, host=host, rank=rank, head_state="idle", **fields)


def hosts(kept: Mapping[str, pa.Table], name: str) -> list[str]:
    found: list[str] = kept[name]["host"].to_pylist()
    return found


def test_rows_of_a_rank_are_kept_from_its_first_host_and_a_second_claim_becomes_one_event() -> None:
    claims = Claims(Held())
    told = {"comms": rows(make(Comm, host="h3", rank=3), make(Comm, host="h9", rank=3, init_ns=1))}
    told |= {"progress": rows(progress("h9", 3), progress("h3", 3), progress("h9", 2))}
    kept, foreign = claims.admit(told, T0)
    assert (hosts(kept, "comms"), hosts(kept, "progress"), foreign) == (["h3"], ["h3", "h9"], 2)
    (event,) = kept["events"].to_pylist()
    assert (event["host"], event["source"], event["kind"]) == ("h9", "gateway", "rank_claimed_twice")
    assert event["message"].startswith("h9 claims rank 3 of communicator 0000000000000007 of job j1, which another")
    kept, _ = claims.admit(told | {"events": rows(make(Event))}, T0)
    assert hosts(kept, "events") == ["h0"], "it is told once"


def test_other_attempts_jobs_and_communicators_are_other_ranks() -> None:
    claims = Claims(Held())
    claims.admit({"comms": rows(make(Comm, host="h3"))}, T0)
    again = rows(*(make(Comm, host="h9", **other) for other in ({"attempt": 1}, {"job": "j2"}, {"comm": 8})))
    kept, foreign = claims.admit({"comms": again}, T0)
    assert (kept["comms"].num_rows, foreign, "events" in kept) == (3, 0, False)


def test_who_held_a_rank_before_the_gateway_began_is_asked_once_in_a_while() -> None:
    store = Held(make(Comm, host="h3"))
    claims = Claims(store)
    told = {"progress": rows(progress("h3"), progress("h9"), progress("h9", comm=8))}
    told |= {"connections": rows(make(Connection, host="h9", comm=None, rank=None))}
    for later_s in (0, 1, 11):
        kept, foreign = claims.admit(told, T0 + later_s * SECOND)
        assert (hosts(kept, "progress"), hosts(kept, "connections"), foreign) == (["h3", "h9"], ["h9"], 1)
    assert store.asked == [[7, 8], [8]], "nobody has claimed 8, but another gateway may have taken it meanwhile"
