"""What a rank, a host, a reader or a stranger in the network can do to others, played against the real gateway."""

from collections.abc import Iterable, Iterator

import httpx
import pytest

from analyzer.pipeline import FollowOptions
from analyzer.service import AnalyzerService, ServiceOptions
from analyzer.windows.jobs import read_roster
from analyzer.windows.window import EvaluationOptions
from lockstep.batches import BOOT_HEADER, encode_batch
from lockstep.records import Agent, Comm, Event, FabricCounter, HostRecord, Progress
from lockstep.store.store import Store
from lockstep.tables import TABLES
from lockstep.topology import lies_on
from lockstep.verdict import Incident
from tests.api.build import Api, batch_headers, check_problem
from tests.builders import SECOND, T0, make, rows
from tests.waiting import LIMIT_S, eventually

WORLD, FORGED = 7, 99
HOSTS = ("h0", "h1", "h2", "h3")
LAST_S = 24
OPTIONS = ServiceOptions(follow=FollowOptions(evaluations=EvaluationOptions(hop_ns=8 * SECOND)))
XID = make(Event, host="h9", ts_ns=T0 + 20 * SECOND, kind="xid", component="gpu:h3/0", severity="critical")


def send(api: Api, host: str, records: Iterable[HostRecord], *, boot: str = "b1") -> httpx.Response:
    told = list(records)
    kinds = {table.name: [each for each in told if type(each) is table.record] for table in TABLES}
    body = encode_batch({name: rows(*found) for name, found in kinds.items() if found})
    headers = batch_headers(api.make_token("ingest", host), agent=host) | {BOOT_HEADER: boot}
    return api.client.post("/api/v1/ingest", content=body, headers=headers)


def progress(host: str, comm: int, rank: int, at_s: float, done: int, *, waits: bool = False, job: str) -> Progress:
    count = {"enqueued": done + waits, "started": done + waits, "done": done}
    state = "recv_wait" if waits else "idle"
    ts_ns = T0 + round(at_s * SECOND)
    return make(Progress, host=host, job=job, comm=comm, rank=rank, ts_ns=ts_ns, head_state=state, **count)


def member(host: str, comm: int, rank: int, job: str, **fields: object) -> Comm:
    return make(Comm, host=host, job=job, comm=comm, rank=rank, world_rank=rank, **fields)


def beats(host: str) -> Iterator[Agent]:
    for second in range(LAST_S + 1):
        ts_ns = T0 + second * SECOND
        yield make(Agent, host=host, ts_ns=ts_ns, watermark_ns=ts_ns, version="test", stalled={})


def run_job(api: Api, job: str, hosts: tuple[str, ...] = HOSTS, comm: int = WORLD, **fields: object) -> None:
    """Let a healthy job of a rank per host run for 24 s, five operations a second."""
    for rank, host in enumerate(hosts):
        moves = [progress(host, comm, rank, second, 5 * second, job=job) for second in range(LAST_S)]
        told = [member(host, comm, rank, job, **fields), *(make(type(each), **_with(each, fields)) for each in moves)]
        assert send(api, host, [*told, *beats(host)], boot=job).status_code == 200


def _with(record: Progress, fields: dict[str, object]) -> dict[str, object]:
    return {name: getattr(record, name) for name in record.__dataclass_fields__} | fields


def forge_standstill(host: str, comm: int, job: str) -> Iterator[Progress]:
    """Yield rows by which three ranks have waited for rank 3 since second 8; each is newer than the honest one."""
    for second in range(8, LAST_S):
        for rank in range(4):
            yield progress(host, comm, rank, second + 0.5, 40, waits=rank < 3, job=job)


def analyse(api: Api, store: Store, *, agents: int) -> list[Incident]:
    sent = "SELECT uniqExact(host, ts_ns) AS n FROM agents"
    eventually(lambda: store.query(sent)["n"][0].as_py() == agents * (LAST_S + 1), limit_s=LIMIT_S)
    told: list[Incident] = []
    service = AnalyzerService(store, api.parts.control, None, OPTIONS, told.append)
    service.run_once(api.lease("analyzer"), T0 + LAST_S * SECOND)
    return told


@pytest.fixture
def fresh(api: Api, shared_store: Store) -> Iterator[Api]:
    yield api
    for table in TABLES:
        shared_store.command(f"TRUNCATE TABLE {shared_store.database}.{table.name} SYNC")


def test_a_host_outside_a_job_cannot_condemn_one_of_its_hosts(fresh: Api, shared_store: Store) -> None:
    job = "outside"
    run_job(fresh, job)
    joins = make(Comm, host="h9", job=job, comm=FORGED, world_rank=9)
    answer = send(fresh, "h9", [joins, *forge_standstill("h9", WORLD, job), XID], boot="first")
    assert check_problem(answer, 400, "wrong-host") == "events: h9 reports on 'gpu:h3/0', which is not its own"
    forged = [*forge_standstill("h9", WORLD, job), *forge_standstill("h9", FORGED, job)]
    claims = [member("h9", comm, rank, job, init_ns=1) for comm in (WORLD, FORGED) for rank in range(4)]
    own = make(Event, host="h9", ts_ns=XID.ts_ns, kind="xid", component="gpu:h9/0", severity="critical")
    assert send(fresh, "h9", [*claims, *forged, own, *beats("h9")]).status_code == 200
    accused = [incident.verdict.component for incident in analyse(fresh, shared_store, agents=5)]
    assert all(lies_on(component, "h9") and not component.startswith("rank:") for component in accused), accused
    held = read_roster(shared_store, job, 0)
    assert [held.process(number).host for number in held.members(WORLD)] == list(HOSTS)
    twice = shared_store.query("SELECT host, kind FROM events WHERE source = 'gateway'").to_pylist()
    assert twice == [{"host": "h9", "kind": "rank_claimed_twice"}]
    of_others = "SELECT count() AS n FROM progress WHERE host = 'h9' AND comm = 7"
    assert shared_store.query(of_others)["n"][0].as_py() == 0


@pytest.mark.slow
def test_a_job_that_starts_again_on_other_hosts_is_believed(fresh: Api, shared_store: Store) -> None:
    run_job(fresh, "again")
    run_job(fresh, "again", ("h4", "h5", "h6", "h7"), comm=8, attempt=1)
    assert analyse(fresh, shared_store, agents=8) == []
    assert read_roster(shared_store, "again", 0).hosts == frozenset(HOSTS)
    assert read_roster(shared_store, "again", 1).hosts == frozenset({"h4", "h5", "h6", "h7"})
    assert shared_store.query("SELECT count() AS n FROM events")["n"][0].as_py() == 0


@pytest.mark.parametrize(
    ("record", "status"),
    [
        (make(Progress, host="h9", ts_ns=2**62, head_state="idle"), 400),
        (make(FabricCounter, host="h9", switch="leaf1", port="1", up=False, extra={}), 403),
    ],
    ids=["future", "switch"],
)
def test_what_would_harm_its_readers_is_refused_at_the_door(api: Api, record: HostRecord, status: int) -> None:
    assert send(api, "h9", [record]).status_code == status


def test_a_thousand_invented_jobs_are_refused(api: Api) -> None:
    invented = [make(Comm, host="h9", job=f"job-{number}") for number in range(1_000)]
    assert send(api, "h9", invented).status_code == 400
