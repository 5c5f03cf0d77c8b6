"""What members of a group sum up and hand over, and that a group which is given up in the middle is let go."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import torch

from lockstep.errors import GroupBroken
from lockstep.training.group import Group
from tests.testbed.training.meeting import fork_child
from tests.waiting import eventually

pytestmark = pytest.mark.slow  # importing torch takes each worker 4 s

MEMBERS = 3
LONG = 2**24  # more than the kernel keeps between two processes


def be_member(file: Path, rank: int) -> tuple[Group, list[torch.Tensor]]:
    """Sum vectors that divide by the members and that do not, then take over what the last one has."""
    group = Group(file, rank, MEMBERS, lambda _: None)
    vectors = [torch.arange(size, dtype=torch.float64) + 10 * rank for size in (0, 1, 2, 7, 9)]
    for vector in vectors:
        group.sum(vector)
        group.begin_sum(vector)()
    given = torch.full((4,), rank)
    group.broadcast(given, MEMBERS - 1)
    return group, [*vectors, given]


def test_all_members_have_the_same_sums_and_what_one_has_handed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with ThreadPoolExecutor(MEMBERS) as threads:
        found = list(threads.map(partial(be_member, tmp_path / "group"), range(MEMBERS)))
    for group, (*sums, given) in found:
        group.give_up()
        for size, total in zip((0, 1, 2, 7, 9), sums, strict=True):
            assert total.tolist() == [MEMBERS * (3 * number + 30) for number in range(size)]
        assert given.tolist() == [MEMBERS - 1] * 4


def stop_in_a_sum(file: Path) -> None:
    """Begin a sum, and go on when the peer has asked for what is missing and left."""
    threads = threads_of_this_process()
    group = Group(file, 1, 2, lambda _: None)
    wait = group.begin_sum(torch.ones(8))
    os.kill(os.getpid(), signal.SIGSTOP)
    with suppress(GroupBroken):  # what the peer had to add may be here
        wait()
    group.give_up()
    del wait, group
    eventually(lambda: threads_of_this_process() == threads)


def threads_of_this_process() -> int:
    return len(os.listdir("/proc/self/task"))


def test_who_was_stopped_in_a_sum_and_given_up_lets_go_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def leave(_: bool) -> None:
        raise GroupBroken("the other is silent")

    pid = fork_child(lambda: stop_in_a_sum(tmp_path / "group"))
    group = Group(tmp_path / "group", 0, 2, leave)
    _, status = os.waitpid(pid, os.WUNTRACED)
    assert os.WIFSTOPPED(status)
    with pytest.raises(GroupBroken, match="the other is silent"):
        group.begin_sum(torch.ones(8))()
    os.kill(pid, signal.SIGCONT)
    assert os.waitpid(pid, 0)[1] == 0


def stop_in_a_message(folder: Path) -> None:
    torch.set_num_threads(1)  # the threads of the process that forked this one are not here
    group = Group(folder / "group", 1, 2, lambda _: None)
    eventually((folder / "asked").exists)
    group.send(torch.ones(LONG), 0, 1)  # begins, and goes on behind this thread
    os.kill(os.getpid(), signal.SIGSTOP)


def test_who_waits_for_a_message_that_was_cut_off_is_told_that_a_connection_has_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")

    def kill(is_torn: bool) -> None:
        if is_torn:
            raise GroupBroken("a connection has closed")
        if not (tmp_path / "asked").exists():
            (tmp_path / "asked").touch()
            os.waitpid(pid, os.WUNTRACED)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)

    pid = fork_child(lambda: stop_in_a_message(tmp_path))
    group = Group(tmp_path / "group", 0, 2, kill)
    with pytest.raises(GroupBroken, match="a connection has closed"):
        group.receive(torch.empty(LONG), 1, 1)
