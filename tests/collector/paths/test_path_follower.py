"""A host's plan file follows the server, survives its absence, and the server learns who kept to it."""

from collections.abc import Callable, Sequence
from pathlib import Path

import httpx
import pytest

from collector.path_follower import PathFollower, make_client
from lockstep.clock import SystemClock
from lockstep.errors import BadInput
from lockstep.host_paths import HostPaths, PathChoice
from lockstep.path_file import read_plan
from lockstep.queue_pair_file import QueuePair, QueuePairAdvice, parse_queue_pairs
from tests.collector.paths.choices import choice, paths

Answer = Callable[[httpx.Request], httpx.Response]


def follower(folder: Path, answer: Answer) -> PathFollower:
    client = httpx.Client(base_url="http://head", transport=httpx.MockTransport(answer))
    return PathFollower(client, "h0", folder / "plan", folder / "reports", SystemClock())


def serving(held: list[HostPaths], reported: list[bytes]) -> Answer:
    """Answer as the server does, with the last plan of a list."""

    def answer(request: httpx.Request) -> httpx.Response:
        if request.method == "POST":
            reported.append(request.content)
            return httpx.Response(204)
        tag = f'"{held[-1].generation}"'
        if request.headers.get("If-None-Match") == tag:
            return httpx.Response(304)
        return httpx.Response(200, content=held[-1].model_dump_json(), headers={"ETag": tag})

    return answer


def test_the_file_follows_the_server(tmp_path: Path) -> None:
    held, reported = [paths(1)], list[bytes]()
    follows = follower(tmp_path, serving(held, reported))
    follows.follow_once()
    assert read_plan(tmp_path / "plan") == paths(1).as_file()
    held.append(paths(2, choice(sports=(4001,))))
    follows.follow_once()
    assert read_plan(tmp_path / "plan") == paths(2, choice(sports=(4001,))).as_file()


def test_an_older_plan_is_left_where_it_is(tmp_path: Path) -> None:
    held = [paths(5)]
    follows = follower(tmp_path, serving(held, []))
    follows.follow_once()
    held.append(paths(4, choice(sports=(1,))))
    follows.follow_once()
    assert read_plan(tmp_path / "plan") == paths(5).as_file()
    assert follows.choices == paths(5).choices
    assert follows.trouble is None


def test_paths_are_known_before_the_file_that_has_programs_ask_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follows, known = follower(tmp_path, serving([paths(1)], [])), list[Sequence[PathChoice]]()
    monkeypatch.setattr("collector.path_follower.write_plan", lambda *_: known.append(follows.choices))
    follows.follow_once()
    assert known == [paths(1).choices]


def test_plan_that_cannot_be_written_is_fetched_again(tmp_path: Path) -> None:
    follows = follower(tmp_path, serving([paths(1)], []))
    (tmp_path / "plan").mkdir()
    follows.follow_once()
    assert follows.trouble
    assert follows.choices == ()
    (tmp_path / "plan").rmdir()
    follows.follow_once()
    assert read_plan(tmp_path / "plan") == paths(1).as_file()
    assert follows.choices == paths(1).choices


@pytest.mark.parametrize(
    "answer",
    [lambda _: httpx.Response(500), lambda _: httpx.Response(200, content=b"x"), "away"],
    ids=["error", "nonsense", "away"],
)
def test_the_last_plan_stays_while_the_server_is_of_no_use(tmp_path: Path, answer: Answer | str) -> None:
    follower(tmp_path, serving([paths(1)], [])).follow_once()

    def fail(request: httpx.Request) -> httpx.Response:
        if isinstance(answer, str):
            raise httpx.ConnectError("connection refused")
        return answer(request)

    follows = follower(tmp_path, fail)
    follows.follow_once()
    assert read_plan(tmp_path / "plan") == paths(1).as_file()
    assert follows.trouble


def test_a_host_without_a_plan_has_no_file_and_no_trouble(tmp_path: Path) -> None:
    follows = follower(tmp_path, lambda _: httpx.Response(404))
    follows.follow_once()
    assert not (tmp_path / "plan").exists()
    assert follows.trouble is None


def test_the_server_is_reported_once_how_many_kept_to_the_plan(tmp_path: Path) -> None:
    reported: list[bytes] = []
    (tmp_path / "reports").mkdir()
    lines = ["1 77 10.0.0.1 4000 10.0.0.2 5 1 enforced", "2 77 10.0.0.1 9 10.0.0.2 5 1 busy"]
    (tmp_path / "reports" / "77").write_text("\n".join(lines) + "\n")
    follows = follower(tmp_path, serving([paths(1)], reported))
    follows.follow_once()
    follows.follow_once()
    assert reported == [b'{"generation":1,"planned":2,"enforced":1,"reasons":{"busy":1}}']


def test_what_is_no_address_is_refused() -> None:
    with pytest.raises(BadInput, match="is not the address of a server"):
        make_client("head:8642", "t")


def test_an_agent_that_starts_while_the_server_is_away_knows_the_paths(tmp_path: Path) -> None:
    follower(tmp_path, serving([paths(3)], [])).follow_once()
    again = follower(tmp_path, lambda _: httpx.Response(500))
    again.follow_once()
    assert again.choices == (choice(),)


def test_advice_is_no_path(tmp_path: Path) -> None:
    advice = paths(3).model_copy(update={"is_enforceable": False})
    follows = follower(tmp_path, serving([advice], []))
    follows.follow_once()
    assert follows.choices == ()


def test_ports_of_queue_pairs_lie_beside_the_file(tmp_path: Path) -> None:
    roce = choice("job/q0", sports=(49_152, 49_153)).model_copy(update={"proto": "roce", "dport": 4791})
    held = [paths(3, choice(), roce)]
    follows = follower(tmp_path, serving(held, []))
    follows.follow_once()
    pair = QueuePair("10.0.0.1", "10.0.0.2", 49_152, 1.0, "job/q0")
    assert read_advice(tmp_path) == QueuePairAdvice(3, 0, (pair,))
    held.append(paths(4))
    follows.follow_once()
    assert read_advice(tmp_path) == QueuePairAdvice(4, 0), "a socket is no queue pair"


def read_advice(folder: Path) -> QueuePairAdvice:
    return parse_queue_pairs((folder / "plan.queue-pairs").read_bytes())
