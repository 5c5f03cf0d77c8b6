"""The process of one worker: does its part of the schedules it is told, and keeps its state when a peer dies."""

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import torch

from planner.pipeline.schedule import Worker
from tests.testbed.training.episode import Episode, Observers, Stage
from tests.testbed.training.exchange import Exchange
from tests.testbed.training.model import build_stage
from tests.testbed.training.optimizer import StaggeredOptimizer
from tests.testbed.training.plan import Command, Reply, StepLine, TrainingPlan, find_schedule


def state_file(folder: Path, worker: Worker) -> Path:
    """Return where a worker leaves its state at the end."""
    return folder / f"state-{worker.pipeline}-{worker.stage}.pt"


def serve(plan: TrainingPlan, worker: Worker, control: socket.socket, report: Callable[[StepLine], None]) -> None:
    """Follow the commands that come until one asks for no steps, then save the state."""
    torch.set_num_threads(1)
    module = build_stage(plan.model, worker.stage)
    stage = Stage(worker, module, StaggeredOptimizer(list(module.parameters()), plan.tuning))
    with control.makefile("r") as lines:
        for line in lines:
            command = Command.model_validate_json(line)
            if command.first == command.end:
                torch.save(
                    {"parameters": module.state_dict(), "packed": stage.optimizer.pack()},
                    state_file(plan.folder, worker),
                )
                return
            answer(control, _obey(plan, stage, command, Observers(_stand(control, stage, command), report)))


def answer(control: socket.socket, reply: Reply) -> None:
    """Send a reply to the coordinator."""
    control.sendall(f"{reply.model_dump_json()}\n".encode())


def _obey(plan: TrainingPlan, stage: Stage, command: Command, observers: Observers) -> Reply:
    schedule = find_schedule(plan, frozenset(command.failed))
    if stage.worker not in command.joined:
        stage.optimizer.go_back(command.first)
    path = plan.folder / f"meeting-{command.generation}"
    exchange = Exchange(stage.worker, sorted(schedule.ops), path, plan.timeout_s)
    try:
        episode = Episode(plan, stage, schedule, exchange)
        episode.share_state(list(command.joined), command.first)
        episode.run(command.first, command.end, observers)
    except RuntimeError as error:  # what gloo raises when a connection ends
        return Reply(state="broken", settled=stage.optimizer.settled, reason=str(error))
    finally:
        exchange.close()
    return Reply(state="done", settled=stage.optimizer.settled)


def _stand(control: socket.socket, stage: Stage, command: Command) -> Callable[[int, int], None]:
    """Return a check that stops the worker at its spot, where it waits to be killed."""

    def check(step: int, number: int) -> None:
        if (step, number) == command.stand_at:
            answer(control, Reply(state="standing", settled=stage.optimizer.settled))
            while True:
                signal.pause()

    return check
