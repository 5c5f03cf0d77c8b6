"""Jobs over HTTP: a job's id may hold slashes, what is wrong is said, and the same matrix is sent once."""

import pytest

from lockstep.store.store import Store
from tests.api.build import Api, check_problem
from tests.api.views.build import COMM, NOW, load_job, put, step
from tests.builders import SECOND, T0

JOB = "/api/v1/jobs/team/run-7"


@pytest.fixture(scope="module")
def api(shared_api: Api, shared_store: Store) -> Api:
    load_job(shared_store, "team/run-7")
    load_job(shared_store, "z")
    put(shared_store, (step("team/run-7", number, 0, T0 + number * SECOND, 0.5) for number in range(5)))
    return shared_api


def test_jobs_come_page_by_page_and_by_condition(api: Api) -> None:
    assert [job["job"] for job in api.walk("/api/v1/jobs", {"limit": 1})] == ["team/run-7", "z"]
    assert [job["job"] for job in api.get("/api/v1/jobs", {"job": "z"}).json()["items"]] == ["z"]
    assert api.get("/api/v1/jobs", {"condition": "running"}).json()["items"] == []
    first = api.get("/api/v1/jobs?condition=ended&condition=slow&limit=1")
    assert "condition=ended&condition=slow" in first.headers["Link"]
    assert [job["job"] for job in first.json()["items"]] == ["team/run-7"]
    check_problem(api.get("/api/v1/jobs", {"condition": "tired"}), 422, "bad-request")


def test_one_job_is_read_by_its_id(api: Api) -> None:
    job = api.get(JOB).json()
    assert (job["job"], job["ranks"], job["condition"], job["step"]) == ("team/run-7", 4, "ended", None)
    check_problem(api.get("/api/v1/jobs/no/such"), 404, "not-found")


def test_steps_ranks_and_communicators_come_page_by_page(api: Api) -> None:
    for path, key, every in (
        ("steps", "step", [4, 3, 2, 1, 0]),
        ("ranks", "rank", [0, 1, 2, 3]),
        ("communicators", "comm", [str(COMM)]),
    ):
        assert [item[key] for item in api.walk(f"{JOB}/{path}", {"limit": 2})] == every


def test_matrix_and_lags_of_the_last_window_and_of_any_stretch_can_be_asked_for(api: Api) -> None:
    answer = api.get(f"{JOB}/matrix")
    matrix = answer.json()
    assert (matrix["to_ns"], matrix["cells"]["ms"]) == (NOW, [1.0, 1.0, 3.0, 1.0])
    tag = answer.headers["ETag"]
    again = api.client.get(f"{JOB}/matrix", headers={**answer.request.headers, "If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    query: dict[str, str | int] = {"from_ns": T0, "to_ns": T0 + 2 * SECOND, "comm": str(COMM)}
    matrix = api.get(f"{JOB}/matrix", query).json()
    assert (matrix["from_ns"], matrix["comm"], len(matrix["ranks"])) == (T0, str(COMM), 4)
    lags = api.get(f"{JOB}/lags", {"columns": 30}).json()
    assert lags["times_ns"][-1] == NOW - 10 * SECOND
    assert [row[-1] for row in lags["lag_ms"]] == [0.0, 0.0, 0.0, 0.6]


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"from_ns": 5}, 400, "come together"),
        ({"from_ns": 5, "to_ns": 5}, 400, "has to be before"),
        ({"from_ns": 0, "to_ns": 10**18}, 400, "the most that is answered"),
        ({"from_ns": -1, "to_ns": 5}, 422, "from_ns"),
        ({"attempt": 70_000}, 422, "attempt"),
    ],
)
def test_stretch_of_time_that_makes_no_sense_is_refused(
    api: Api, query: dict[str, int], status: int, says: str
) -> None:
    for path in ("matrix", "lags"):
        answer = api.get(f"{JOB}/{path}", query)
        assert says in check_problem(answer, status, "bad-input" if status == 400 else "bad-request")


def test_communicator_that_is_none_is_refused_and_a_job_that_nobody_knows_has_nothing(api: Api) -> None:
    for comm, status in (("x", 422), ("9" * 20, 400), ("5", 404)):
        assert api.get(f"{JOB}/matrix", {"comm": comm}).status_code == status
    for path in ("ranks", "communicators", "matrix", "lags"):
        check_problem(api.get(f"/api/v1/jobs/no/such/{path}"), 404, "not-found")
