"""The Slurm controller on a real slurmrestd beside slurmctld and four slurmd: the same as with commands alone."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.errors import ControllerDown
from planner.controllers.protocol import JobView, Restart
from planner.controllers.slurm import SlurmController
from planner.controllers.slurm_commands import SlurmCommands, SlurmOptions
from planner.controllers.slurm_jobs import SlurmNode
from planner.controllers.slurm_rest import SlurmRest, Slurmrestd
from tests.planner.controllers.contract import check_contract
from tests.planner.controllers.test_slurm_real import (
    drain_as_somebody_else,
    left_idle,
    make_rig,
    read_output,
    restart_to_the_end,
    start_training,
)
from tests.testbed.services import wait_until
from tests.testbed.slurm import LocalSlurm

# slurmrestd refuses to run as root or as SlurmUser: only root can start it as somebody else.
pytestmark = [pytest.mark.slow, pytest.mark.needs_root]


@pytest.fixture
def slurm(cluster: LocalSlurm) -> Iterator[LocalSlurm]:
    yield from left_idle(cluster)


@pytest.fixture
def options(slurm: LocalSlurm, tmp_path: Path) -> SlurmOptions:
    token = tmp_path / "token"
    token.write_text(slurm.make_token("root"))
    return SlurmOptions(tmp_path / "spool", environment=slurm.environment, rest=slurm.rest, rest_token_file=token)


def open_rest(options: SlurmOptions) -> SlurmRest:
    assert options.rest is not None
    return SlurmRest(options, Slurmrestd(options.rest, options))


def without_when(nodes: list[SlurmNode]) -> list[SlurmNode]:
    """Return nodes without the moment of their reason, which the commands tell in local time."""
    return [replace(node, when="") for node in nodes]


def test_slurmrestd_keeps_the_contract(slurm: LocalSlurm, options: SlurmOptions) -> None:
    check_contract(make_rig(slurm, options))


def test_both_ways_tell_the_same(slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path) -> None:
    job = start_training(slurm, tmp_path, "--comment=lockstep r-1")
    drain_as_somebody_else(slurm, "n3")
    slurm.call("scontrol", "update", "NodeName=n4", "State=DOWN", "Reason=no power")
    rest, commands = open_rest(options), SlurmCommands(options)
    assert without_when(rest.show_nodes()) == without_when(commands.show_nodes())
    assert [each.as_view() for each in rest.view_jobs(job)] == [each.as_view() for each in commands.view_jobs(job)]
    assert rest.find_marked("r-1") == commands.find_marked("r-1") == job
    assert rest.find_marked("r-0") is commands.find_marked("r-0") is None
    assert rest.show_node("n9") is commands.show_node("n9") is None
    assert rest.view_jobs("4711") == commands.view_jobs("4711") == []
    slurm.call("scontrol", "update", "NodeName=n4", "State=RESUME")


def test_a_job_starts_again_without_the_node(slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path) -> None:
    bare = replace(options, scancel="/nowhere/scancel", squeue="/nowhere/squeue")  # slurmrestd does it by itself
    order = Restart("r-2", start_training(slurm, tmp_path), exclude=("n1",), checkpoint="/ckpt/a,b")
    new = restart_to_the_end(SlurmController(bare), order, tmp_path)
    assert read_output(tmp_path, new) == ["n[2-3] attempt 0 from /ckpt/a,b with --lr=3e-4"]
    elsewhere = SlurmController(replace(bare, spool=tmp_path / "a planner on another host"))
    assert elsewhere.job(new) == JobView(new, "running", ("n2", "n3"), mark="r-2")
    assert (elsewhere.restart(order).outcome, elsewhere.restart(order).job) == ("already", new)


def test_without_a_token_slurmrestd_asks_who_we_are(slurm: LocalSlurm, options: SlurmOptions, tmp_path: Path) -> None:
    job = start_training(slurm, tmp_path)
    address = f"unix://{slurm.door}/local/socket"
    controller = SlurmController(replace(options, rest=address, rest_token_file=None, rest_user="nobody"))
    assert len(controller.nodes()) == 4
    report = controller.restart(Restart("r-3", job))
    assert report.outcome == "failed"
    assert "Slurm does not allow it to nobody, who must be an operator" in report.what
    assert controller.job(job) == JobView(job, "running", ("n1", "n2"))


def test_a_wrong_token_and_a_controller_that_is_away_are_said(slurm: LocalSlurm, options: SlurmOptions) -> None:
    assert options.rest_token_file is not None
    token = options.rest_token_file.read_text()
    options.rest_token_file.write_text("wrong")
    controller = SlurmController(options)
    with pytest.raises(ControllerDown, match="the token is wrong or has run out"):
        controller.nodes()
    options.rest_token_file.write_text(token)
    assert len(controller.nodes()) == 4, "a token that was renewed is read"
    slurm.stop("slurmctld")
    with pytest.raises(ControllerDown, match=r"does not answer: timed out|slurmctld does not answer"):
        SlurmController(replace(options, timeout_s=2.0)).nodes()
    slurm.start_controller()
    wait_until(lambda: all(node.is_usable for node in controller.nodes()), "all nodes are in service again")
