"""The client against the real app: every list to its end, every act once, every refusal with its kind."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from api.views import hosts, incidents, jobs, matrix
from lockstep import __version__
from lockstep.capture.files import read_capture
from lockstep.client import Client
from lockstep.client.client import AgentView, Cells, IncidentFile, Job, Matrix, Seat, TrainingStep
from lockstep.errors import ServerRefused
from lockstep.state.decisions import list_outcomes, save_decisions
from lockstep.state.incidents import save_incidents
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import open_store
from tests.api.build import Api, running_api
from tests.api.routes.test_captures import store_job
from tests.api.views.build import COMM, NOW, heartbeat, host_of, load_job, put, step
from tests.builders import SECOND, T0
from tests.cli.answering import answering
from tests.lockstep.state.build import decision, incident

JOB = "team/run 1?#%2F"  # schedulers let people name jobs as they like


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """An app that all tests here share; each has incidents and jobs of its own."""
    folder = tmp_path_factory.mktemp("api")
    with open_store(f"chdb://{folder / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        with running_api(folder, store) as running:
            yield running


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[Client]:
    with Client(str(api.client.base_url), api.make_token("act")) as opened:
        yield opened


def propose(api: Api, name: str) -> tuple[str, str]:
    """Write down an open incident and a decision on it that does not expire soon; return their ids."""
    expires_ns = api.parts.clock.now_ns() + 10**15
    made = decision(f"d-{name}", incident=f"i-{name}", job=name).model_copy(update={"expires_ns": expires_ns})
    save_incidents(api.parts.control, [incident(made.incident, job=name)], None)
    save_decisions(api.parts.control, [made], None)
    return made.incident, made.id


def test_incidents_are_read_to_the_last_page_and_chosen(api: Api, client: Client) -> None:
    made = [incident(f"many{number:03}", job="many", opened_ns=number) for number in range(1, 121)]
    chosen = [incident("i1", job=JOB), incident("i2", job=JOB, state="closed")]
    save_incidents(api.parts.control, [*made, *chosen], None)

    assert list(client.incidents(job="many")) == made[::-1]
    assert list(client.incidents(job=JOB, state="closed")) == chosen[1:]
    assert list(client.incidents(job="nobody")) == []


def test_incident_comes_with_its_decisions_and_their_orders_and_an_act_with_the_same_key_is_done_once(
    api: Api, client: Client
) -> None:
    about, made = propose(api, "whole")
    given = client.approve(made, "I know")
    first, again = (client.undo(made, "wrong node", idempotency_key="k1") for _ in range(2))
    client.confirm(about, True, part="nic:h3/eth1", why="cable replaced")
    found = client.incident(about)

    assert first == again
    assert (given.kind, given.why, given.who) == ("approve", "I know", "test")
    assert client.reject(made, "wrong node").kind == "reject"
    assert [order.kind for order in client.decision(made).orders] == ["approve", "undo", "reject"]
    assert found.verdict == incident(about, job="whole").verdict
    assert [one.action for one in found.decisions] == ["replace"]
    assert [(one.id, one.execution) for one in client.decisions(job="whole")] == [(made, None)]
    assert list(client.decisions(job="nobody")) == []
    assert list_outcomes(api.parts.control)[about].why == "cable replaced"
    assert (client.scorecard()["right"], list(client.isolated())) == (1, [])


def test_jobs_their_steps_and_agents_are_read(api: Api, client: Client) -> None:
    load_job(api.parts.store, "steps/a")
    put(api.parts.store, (step("steps/a", number, 0, T0 + number * SECOND, 0.5) for number in range(105)))
    (found,) = [job for job in client.jobs() if job.job == "steps/a"]
    assert (found.ranks, found.condition) == (4, "ended")
    assert [one.step for one in client.steps("steps/a")] == list(range(104, -1, -1))
    put(api.parts.store, [heartbeat("late", api.parts.clock.now_ns(), lag_s=30.0, dropped=7)])
    (agent,) = [agent for agent in client.agents() if agent.host == "late"]
    assert (agent.lag_s, agent.dropped, agent.version) == (30.0, 7, "1.0")
    assert "late" in [item["host"] for item in client.items("/api/v1/agents", {"limit": 1})]


def test_matrix_is_that_of_the_last_closed_window(api: Api, client: Client) -> None:
    load_job(api.parts.store, "matrix/b")
    whole, one = client.matrix("matrix/b"), client.matrix("matrix/b", comm=COMM)

    assert (whole.to_ns, whole.unit, whole.cells.ms) == (NOW, "ms/MiB", (1.0, 1.0, 3.0, 1.0))
    assert [seat.host for seat in whole.ranks] == [host_of(rank, "matrix/b") for rank in range(4)]
    assert (one.comm, one.cells) == (str(COMM), whole.cells)
    with pytest.raises(ServerRefused, match="nobody"):
        client.matrix("nobody")


ANSWERS: dict[type[BaseModel], type[BaseModel]] = {
    Job: jobs.Job,
    TrainingStep: jobs.TrainingStep,
    AgentView: hosts.AgentView,
    Matrix: matrix.Matrix,
    Seat: matrix.Seat,
    Cells: matrix.Cells,
    IncidentFile: incidents.IncidentDetail,
}


def test_answers_have_the_fields_that_the_server_gives(client: Client) -> None:
    for ours, theirs in ANSWERS.items():
        assert ours.model_fields.keys() <= theirs.model_fields.keys()
    assert client.version() == __version__


def test_capture_of_a_job_or_an_incident_is_saved_whole(api: Api, client: Client, tmp_path: Path) -> None:
    store_job(api, "exported", host="h2", ended_s_ago=3600)
    now_ns = api.parts.clock.now_ns()
    made = incident("i-exported", job="exported", opened_ns=now_ns - 10**10, updated_ns=now_ns)
    save_incidents(api.parts.control, [made], None)
    client.save_incident("i-exported", tmp_path / "incident.tar.zst")
    assert read_capture(tmp_path / "incident.tar.zst").info.job == "exported"

    store_job(api, JOB, host="h0")
    progress: list[int] = []
    client.save_capture(JOB, tmp_path / "job.tar.zst", watch=progress.append)
    assert read_capture(tmp_path / "job.tar.zst").info.job == JOB
    assert progress[-1] == (tmp_path / "job.tar.zst").stat().st_size

    with pytest.raises(ServerRefused, match="the store knows no job 'nobody'"):
        client.save_capture("nobody", tmp_path / "case.tar.zst")
    assert not list(tmp_path.glob("*case*"))


def test_refusals_carry_the_kind_and_the_status_of_the_problem(api: Api, client: Client) -> None:
    _, made = propose(api, "refused")
    with pytest.raises(ServerRefused, match="there is no decision 'd9'") as unknown:
        client.decision("d9")
    with Client(client.server.url, api.make_token("read")) as reader, pytest.raises(ServerRefused) as forbidden:
        reader.approve(made)
    with Client(client.server.url, "lks_nonsense") as stranger, pytest.raises(ServerRefused) as unnamed:
        next(stranger.incidents())
    found = [(each.value.status, each.value.kind, each.value.is_passing) for each in (unknown, forbidden, unnamed)]
    kinds = {404: "not-found", 403: "wrong-scope", 401: "unknown-token"}
    assert found == [(status, f"urn:lockstep:problem:{kind}", False) for status, kind in kinds.items()]


def test_list_of_somebody_else_is_not_read() -> None:
    for body in (b"{}", b'{"items": 3}', b'{"items": [{"id": 1}]}', b'{"items": ["text"]}'):
        with answering(200, body) as url, Client(url) as client, pytest.raises(ServerRefused) as caught:
            list(client.incidents())
        assert f"what answers at {url} is no Lockstep server of this version" in str(caught.value)
