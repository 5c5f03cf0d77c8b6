"""The coordinator kills, restarts and commands workers; here they are forked, and say what they are told to say."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from lockstep.errors import LockstepError
from lockstep.pipeline.dispatch import plan_schedule
from lockstep.pipeline.schedule import Shape, Worker, unit_times
from lockstep.pipeline.schedule_file import pack_schedule
from tests.testbed.training.job import Coordinator
from tests.testbed.training.plan import Command, Kill, LossLine, Rejoin, Reply, TrainingPlan

GRID = Shape(stages=1, pipelines=3, micro_batches=2)
FIRST, LOST, LAST = (Worker(pipeline, 0) for pipeline in range(3))
Act = Callable[[Worker, Command], Reply]


def plan(folder: Path, kills: tuple[Kill, ...] = (), rejoins: tuple[Rejoin, ...] = ()) -> TrainingPlan:
    schedules = tuple(pack_schedule(plan_schedule(GRID, unit_times(1), failed)) for failed in (set(), {LOST}))
    return TrainingPlan(folder=folder, steps=6, schedules=schedules, kills=kills, rejoins=rejoins, timeout_s=60)


def obedient(worker: Worker, command: Command) -> Reply:
    if command.stand_at:
        return Reply(state="standing", settled=0)
    return Reply(state="done", settled=command.end)


def run(plan: TrainingPlan, act: Act = obedient) -> tuple[list[LossLine], list[tuple[Worker, Command]]]:
    """Run the job; return the losses, and what each worker was commanded in the order in which it was."""
    losses: list[LossLine] = []
    heard = plan.folder / "heard"

    def live(worker: Worker, control: socket.socket) -> None:
        with control.makefile("r") as lines:
            for line in lines:
                command = Command.model_validate_json(line)
                with open(heard, "a") as file:
                    file.write(f"{worker.pipeline} {command.model_dump_json()}\n")
                if command.first == command.end:
                    return
                control.sendall(f"{act(worker, command).model_dump_json()}\n".encode())

    Coordinator(plan, live, losses.append).run()
    told = [line.split(" ", 1) for line in heard.read_text().splitlines()]
    return losses, [(Worker(int(pipeline), 0), Command.model_validate_json(text)) for pipeline, text in told]


def spans(told: list[tuple[Worker, Command]], worker: Worker) -> list[tuple[int, int]]:
    return [(command.first, command.end) for each, command in told if each == worker]


def test_undisturbed_job_is_one_command_and_a_farewell(tmp_path: Path) -> None:
    losses, told = run(plan(tmp_path))

    assert losses == []
    assert {worker: spans(told, worker) for worker in (FIRST, LOST, LAST)} == {
        worker: [(0, 6), (0, 0)] for worker in (FIRST, LOST, LAST)
    }


def test_worker_is_killed_before_a_step_and_comes_back_before_another(tmp_path: Path) -> None:
    losses, told = run(plan(tmp_path, (Kill(worker=LOST, step=2),), (Rejoin(worker=LOST, step=4),)))

    assert losses == [LossLine(lost=LOST, exit_code=-9, step=2)]
    assert spans(told, FIRST) == [(0, 2), (2, 4), (4, 6), (0, 0)]
    assert spans(told, LOST) == [(0, 2), (4, 6), (0, 0)]
    commands = [command for worker, command in told if worker == LAST]
    assert [(command.failed, command.joined) for command in commands[:3]] == [((), ()), ((LOST,), ()), ((), (LOST,))]
    assert [command.generation for command in commands[:3]] == [0, 1, 2]


def test_survivors_of_a_death_go_on_with_the_step_that_all_of_them_have_settled(tmp_path: Path) -> None:
    def break_off(worker: Worker, command: Command) -> Reply:
        if command.failed or worker == LOST:
            return obedient(worker, command)
        return Reply(state="broken", settled=3 if worker == FIRST else 4, reason="connection closed")

    losses, told = run(plan(tmp_path, (Kill(worker=LOST, step=4, after_ops=1),)), break_off)

    assert losses == [LossLine(lost=LOST, exit_code=-9, step=3)]
    assert spans(told, FIRST) == spans(told, LAST) == [(0, 6), (3, 6), (0, 0)]
    assert spans(told, LOST) == [(0, 6)]


def test_workers_that_break_off_unkilled_or_an_event_after_the_last_step_fail_the_job(tmp_path: Path) -> None:
    with pytest.raises(LockstepError, match=r"nobody was killed, and workers broke off: .*: no route"):
        run(plan(tmp_path), lambda *_: Reply(state="broken", settled=0, reason="no route"))
    with pytest.raises(LockstepError, match=r"the job ended before .*step=9"):
        run(plan(tmp_path, (Kill(worker=LOST, step=9),)))


def test_worker_that_ends_by_itself_ends_the_job_and_nobody_is_left(tmp_path: Path) -> None:
    def leave(worker: Worker, command: Command) -> Reply:
        (tmp_path / f"{os.getpid()}.pid").touch()
        if worker == LAST:
            os._exit(3)
        return obedient(worker, command)

    with pytest.raises(LockstepError, match="has ended by itself"):
        run(plan(tmp_path), leave)
    assert not [pid for pid in tmp_path.glob("*.pid") if Path("/proc", pid.stem).exists()]
