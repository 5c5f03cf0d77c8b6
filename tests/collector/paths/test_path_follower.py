"""A host's plan file follows the server, survives its absence, and the server learns who kept to it."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest

from collector.path_follower import PathFollower, PathReports, make_client
from lockstep.clock import SystemClock
from lockstep.errors import BadInput
from lockstep.host_paths import HostPaths, PathChoice, PathCount, read_plan
from tests.builders import SECOND


def choice(connection: str = "f0", sports: tuple[int, ...] = (4000,)) -> PathChoice:
    ends = {"nic": "eth0", "dst": "h1", "dst_nic": "eth0", "source": "10.0.0.1", "destination": "10.0.0.2"}
    told = {"connection": connection, "links": ("leaf0--spine0",), "sports": sports}
    return PathChoice.model_validate(ends | told)


def paths(generation: int, *choices: PathChoice, is_enforceable: bool = True) -> HostPaths:
    when = {"generation": generation, "made_ns": 1, "lease_end_ns": 0}
    facts = {"host": "h0", "is_enforceable": is_enforceable, "choices": choices or (choice(),)}
    return HostPaths.model_validate(facts | when)


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


def test_the_file_follows_the_server_after_its_paths_are_known_and_an_older_plan_is_left_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = [paths(1)]
    follows, known = follower(tmp_path, serving(held, [])), list[Sequence[PathChoice]]()
    with monkeypatch.context() as patch:
        patch.setattr("collector.path_follower.write_plan", lambda *_: known.append(follows.choices))
        follows.follow_once()
    assert known == [paths(1).choices], "programs ask for them as soon as there is a file"
    newer = paths(5, choice(sports=(4001,)))
    for plan in (newer, paths(4, choice(sports=(1,)))):
        held.append(plan)
        follows.follow_once()
        assert read_plan(tmp_path / "plan") == newer.as_file()
        assert (follows.choices, follows.trouble) == (newer.choices, None)


def test_plan_that_cannot_be_written_is_fetched_again(tmp_path: Path) -> None:
    follows = follower(tmp_path, serving([paths(1)], []))
    (tmp_path / "plan").mkdir()
    follows.follow_once()
    assert (bool(follows.trouble), follows.choices) == (True, ())
    (tmp_path / "plan").rmdir()
    follows.follow_once()
    assert read_plan(tmp_path / "plan") == paths(1).as_file()
    assert follows.choices == paths(1).choices


def test_the_last_plan_stays_and_is_known_while_the_server_is_of_no_use(tmp_path: Path) -> None:
    follower(tmp_path, serving([paths(1)], [])).follow_once()
    for answer in (httpx.Response(500), httpx.Response(200, content=b"x"), httpx.ConnectError("refused")):
        follows = follower(tmp_path, Mock(side_effect=[answer]))
        follows.follow_once()
        assert read_plan(tmp_path / "plan") == paths(1).as_file()
        assert follows.trouble
        assert follows.choices == (choice(),)


def test_a_host_without_a_plan_has_no_file_and_no_trouble_and_advice_is_no_path(tmp_path: Path) -> None:
    follows = follower(tmp_path, lambda _: httpx.Response(404))
    follows.follow_once()
    assert not (tmp_path / "plan").exists()
    assert follows.trouble is None
    advised = follower(tmp_path, serving([paths(3, is_enforceable=False)], []))
    advised.follow_once()
    assert advised.choices == ()
    with pytest.raises(BadInput, match="is not the address of a server"):
        make_client("head:8642", "t")


def test_the_server_is_reported_once_how_many_kept_to_the_plan(tmp_path: Path) -> None:
    reported: list[bytes] = []
    (tmp_path / "reports").mkdir()
    lines = ["1 77 10.0.0.1 4000 10.0.0.2 5 1 enforced", "2 77 10.0.0.1 9 10.0.0.2 5 1 busy"]
    (tmp_path / "reports" / "77").write_text("\n".join(lines) + "\n")
    follows = follower(tmp_path, serving([paths(1)], reported))
    follows.follow_once()
    follows.follow_once()
    assert reported == [b'{"generation":1,"planned":2,"enforced":1,"reasons":{"busy":1}}']


def test_ports_of_queue_pairs_lie_beside_the_file(tmp_path: Path) -> None:
    roce = choice("job/q0", sports=(49_152, 49_153)).model_copy(update={"proto": "roce", "dport": 4791})
    held = [paths(3, choice(), roce)]
    follows = follower(tmp_path, serving(held, []))
    follows.follow_once()
    advice = tmp_path / "plan.queue-pairs"
    assert advice.read_text().splitlines()[1:] == ["10.0.0.1 10.0.0.2 49152 1 job/q0", "end 1"]
    held.append(paths(4))
    follows.follow_once()
    assert advice.read_text() == "lockstep-queue-pairs 1 4 0 advisory\nend 0\n", "a socket is no queue pair"


DAY_S = 86_400


def line(outcome: str = "enforced", generation: int = 1) -> str:
    return f"5 77 10.0.0.1 4000 10.0.0.2 80 {generation} {outcome}\n"


class Host:
    """A folder of reports, and the processes that live."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.proc = folder / "reports", folder / "proc"
        self.folder.mkdir()
        self.proc.mkdir()
        self.reports = PathReports(self.folder, self.proc)

    def tell(self, pid: int, *lines: str) -> Path:
        with open(self.folder / str(pid), "a") as file:
            file.writelines(lines)
        return self.folder / str(pid)

    def live(self, pid: int) -> None:
        (self.proc / str(pid)).mkdir()

    def tidy(self, after_s: float, of: Path) -> int:
        """Tidy up so many seconds after a file was last written."""
        return self.reports.tidy(os.lstat(of).st_ctime_ns + int(after_s * SECOND))


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def counts(enforced: int, generation: int = 1, **reasons: int) -> PathCount:
    planned = enforced + sum(reasons.values())
    return PathCount(generation=generation, planned=planned, enforced=enforced, reasons=reasons)


def test_a_file_goes_when_its_process_has_once_all_of_it_is_counted_and_counts_all_the_same(host: Host) -> None:
    file = host.tell(77, line(), line("busy"))
    assert host.reports.count(1) == counts(1, busy=1)
    host.tell(77, line())
    assert host.tidy(61, file) == 0, "something was reported after the count"
    for _ in range(2):
        assert host.reports.count(1) == counts(2, busy=1), "counted once"
    assert (host.tidy(61, file), file.exists()) == (1, False)
    assert host.reports.count(1) == counts(2, busy=1)
    host.tell(77, *(line(generation=generation) for generation in (1, 2, 3)))
    assert host.reports.count(1) == counts(3, busy=1)
    assert host.reports.count(3) == counts(5, generation=3, busy=1), "of a plan to come when it has come"


def test_the_file_of_a_process_that_lives_stays_for_a_day_and_one_written_just_now_for_a_minute(host: Host) -> None:
    host.live(77)
    file, other = host.tell(77, line()), host.tell(78, line())
    host.reports.count(1)
    assert [host.tidy(after_s, other) for after_s in (59, 61)] == [0, 1]
    assert [host.tidy(after_s, file) for after_s in (DAY_S - 1, DAY_S)] == [0, 1]


def test_words_that_the_shim_does_not_know_and_files_too_large_are_no_outcomes(host: Host) -> None:
    host.tell(77, line("curious"), "² 77 a 1 b 2 3 enforced\n", f"{'9' * 5000} 77 a 1 b 2 3 enforced\n", line())
    host.tell(78, line() * 50_000)
    assert host.reports.count(1) == counts(1)
    missing = PathReports(host.folder / "none")
    assert (missing.count(1), missing.tidy(10**18)) == (counts(0), 0)


def test_what_is_no_plain_file_of_a_process_is_neither_read_nor_removed(host: Host, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text(line())
    (host.folder / "1").symlink_to(secret)
    os.link(secret, host.folder / "2")
    os.mkfifo(host.folder / "3")
    (host.folder / "4").mkdir()
    (host.folder / "notes").write_text(line())
    open_to_all = host.tell(5, line())
    open_to_all.chmod(0o666)
    assert host.reports.count(1) == counts(0)
    assert host.tidy(2 * DAY_S, open_to_all) == 0
    assert len(list(host.folder.iterdir())) == 6
    file = host.tell(77, line())
    host.folder.chmod(0o777)  # others may change the directory
    assert (host.reports.count(1), host.tidy(61, file)) == (counts(0), 0)
    host.folder.chmod(0o1777)
    assert host.reports.count(1) == counts(1)
