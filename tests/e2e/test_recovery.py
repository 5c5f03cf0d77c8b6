"""A real job under a real Slurm loses a host: it goes on without it from its checkpoint, and the host comes back."""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.execution import Order
from lockstep.state.decisions import find_execution, give_order, list_decisions
from tests.testbed.recovering import await_found, recover, running_site
from tests.testbed.training.checkpointed import LoggedStep, read_log

pytestmark = [pytest.mark.slow, pytest.mark.needs_root, pytest.mark.usefixtures("slurm_is_installed")]


def test_host_is_drained_job_goes_on_without_it_and_people_and_limits_have_the_last_word(tmp_path: Path) -> None:
    with running_site(tmp_path) as site:
        first = site.nodes_of(site.job)
        lost = first[1]
        told = recover(site, lost, print)
        print(told, f"total {told.total_s:.1f} s")
        assert set(told.nodes_after) == {"n1", "n2", "n3", "n4"} - {lost}
        assert told.resumed_from > 0
        assert told.resumed_from % 5 == 0
        check_losses_go_on(site.folder)
        assert site.state_of(lost) in ("idle", "mixed", "allocated")

        # A second node within the hour is one too many: a wrong verdict drains nothing by itself.
        site.job = max(site.slurm.call("squeue", "--noheader", "--format=%i").split(), key=int)
        wrong = site.report("i2", told.nodes_after[0])
        held = await_found(lambda: list_decisions(site.control, incident=wrong.id), "there is a second decision")[0]
        # The node that came back is a spare as soon as the planner has noticed that it idles.
        assert held.action in ("reconfigure", "replace")
        assert held.mode == "propose"
        assert held.held_because == "1 nodes were isolated in the last hour, and 1 is the limit"
        assert find_execution(site.control, held.id) is None

        # A person lets it happen, thinks again, and the node is given back.
        give_order(site.control, Order(decision=held.id, kind="approve", who="ada", ts_ns=held.created_ns))
        await_found(lambda: find_execution(site.control, held.id), "the approved decision is begun")
        give_order(site.control, Order(decision=held.id, kind="undo", who="ada", why="wrong", ts_ns=held.created_ns))

        def is_undone() -> bool:
            run = find_execution(site.control, held.id)
            return run is not None and run.state == "undone"

        await_found(is_undone, "the undo is carried out")
        assert "drain" not in site.state_of(told.nodes_after[0])


def check_losses_go_on(folder: Path) -> None:
    """Every step of every attempt has the loss that it has in a job of one rank which nothing ever happened to."""
    lines = [LoggedStep.model_validate_json(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    last = max(line.step for line in lines)
    words = ["--dir", folder / "alone", "--steps", last, "--every", last + 1, "--log", folder / "alone.jsonl"]
    command = [sys.executable, "-m", "tests.testbed.training.checkpointed", "--ranks", 1, *words]
    subprocess.run([str(word) for word in command], check=True, capture_output=True)
    alone = read_log(folder / "alone.jsonl")
    assert len({line.resumed_from for line in lines}) > 1
    assert [line.loss for line in lines] == pytest.approx([alone[line.step].loss for line in lines], rel=1e-5)
