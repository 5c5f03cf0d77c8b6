"""The torchrun controller over agents that only wait: found by pid and job, stopped and started, no others."""

import json
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.clock import ManualClock
from lockstep.errors import BadInput, ControllerDown
from planner.controllers import torchrun
from planner.controllers.protocol import JobView, Restart
from planner.controllers.running import Deadline
from planner.controllers.torchrun import TorchrunController, TorchrunOptions
from planner.controllers.torchrun_agents import Agents, Reach
from tests.planner.controllers.contract import Rig, check_contract
from tests.planner.controllers.test_running import is_alive, wait_for_death
from tests.testbed.services import wait_until

FAKE = Path(__file__).with_name("fake_torchrun.sh")
NODES = ("n1", "n2", "n3")
LIMIT_S = 120  # never reached unless a test fails


@pytest.fixture
def options(tmp_path: Path) -> Iterator[TorchrunOptions]:
    """A job of three nodes, none of which has an agent yet; ends those that it finds at the end."""
    launch = f"sh {FAKE} --rdzv-id=$job </dev/null >/dev/null 2>&1 & echo $! > $pid_file"
    reach = Reach(str(tmp_path / "{job}-{node}.pid"), launch)
    options = TorchrunOptions("llm-7", NODES, reach, tmp_path / "state", timeout_s=LIMIT_S)
    yield options
    agents = look_for(options)
    agents.each(NODES, agents.stop)
    wait_until(lambda: not find_pids(options), "all agents have ended")


def look_for(options: TorchrunOptions) -> Agents:
    return Agents(options.job, options.reach, Deadline(LIMIT_S))


def reached(options: TorchrunOptions, **changes: Any) -> TorchrunOptions:  # Any: fields of how nodes are reached
    return replace(options, reach=replace(options.reach, **changes))


def start_all(options: TorchrunOptions) -> dict[str, int]:
    """Start the agents as a person would, and return their process ids when they have workers."""
    agents = look_for(options)
    agents.each(NODES, lambda node: agents.launch(node, "by-hand", {}))
    wait_until(lambda: all(agents.each(NODES, agents.find_workers)), "all agents have workers")
    return find_pids(options)


def find_pids(options: TorchrunOptions) -> dict[str, int]:
    """Return the agents that are alive, of those whose number their launch command has left."""
    files = {node: Path(options.reach.pid_file.format(node=node, job=options.job)) for node in NODES}
    pids = {node: int(file.read_text()) for node, file in files.items() if file.exists()}
    return {node: pid for node, pid in pids.items() if is_alive(pid)}


def test_the_contract_is_kept(options: TorchrunOptions) -> None:
    start_all(options)

    def reset() -> None:
        controller = TorchrunController(options)
        for node in controller.nodes():
            if node.mark:
                controller.release(node.name, node.mark)

    check_contract(
        Rig(
            make=lambda dry_run: TorchrunController(replace(options, dry_run=dry_run)),
            look=lambda: (list(TorchrunController(options).nodes()), sorted(find_pids(options))),
            node="n2",
            other="n3",
            reset=reset,
        )
    )


def test_isolating_ends_one_agent_and_no_other_process(options: TorchrunOptions) -> None:
    before = start_all(options)
    pid_file = Path(options.reach.pid_file.format(node="n3", job="llm-7"))
    agent = pid_file.read_text()
    pid_file.write_text(str(os.getpid()))  # the number went to somebody else
    assert TorchrunController(options).isolate("n3", "d-0", "slow").outcome == "done"
    for text in ("", "-1", "1; kill 1", "99999999"):
        pid_file.write_text(text)
        assert look_for(options).find("n3") is None
    pid_file.write_text(agent)
    assert Agents("llm-77", options.reach, Deadline(LIMIT_S)).find("n3") is None
    # A planner wrote this down, and died before it did it.
    (options.state / "node-n2.json").write_text(json.dumps({"mark": "d-1", "reason": "slow"}))
    report = TorchrunController(options).isolate("n2", "d-1", "NIC is slow")
    assert (report.outcome, report.what) == ("done", "the agent of n2 is stopped: NIC is slow")
    assert find_pids(options) == {"n1": before["n1"], "n3": before["n3"]}
    assert TorchrunController(options).job("llm-7") == JobView("llm-7", "running", ("n1", "n3"), mark="by-hand")


def test_workers_that_an_agent_leaves_behind_are_ended(options: TorchrunOptions) -> None:
    start_all(reached(options, launch=f"export FAKE_STRAY=1\n{options.reach.launch}"))
    (worker,) = look_for(options).find_workers("n2")
    others = [each.pid for node in ("n1", "n3") for each in look_for(options).find_workers(node)]
    controller = TorchrunController(options)
    assert controller.isolate("n2", "d-1", "slow").outcome == "done"
    wait_for_death(worker.pid)
    assert all(is_alive(pid) for pid in others), "those of other nodes go on"
    assert controller.restart(Restart("d-2", "llm-7")).outcome == "done"
    for pid in others:
        wait_for_death(pid)


def test_a_dead_host_is_left_behind(options: TorchrunOptions) -> None:
    start_all(options)
    controller = TorchrunController(reached(options, on_node=("sh", "-c", '[ "$0" != n2 ] && exec "$@"', "{node}")))
    for outcome in ("done", "already"):
        assert controller.isolate("n2", "d-1", "dead").outcome == outcome
    report = controller.restart(Restart("d-1", "llm-7", exclude=("n2",)))
    assert report.what == "job llm-7 is started again on n1, n3"
    view = controller.job("llm-7")
    assert view is not None
    assert (view.state, view.nodes) == ("running", ("n1", "n3"))


def test_a_node_that_the_rest_needs_is_not_taken(options: TorchrunOptions, tmp_path: Path) -> None:
    controller = TorchrunController(replace(options, min_nodes=3, rendezvous_node="n1"))
    assert controller.isolate("n1", "d-1", "slow").what == (
        "this needs a person: n1 hosts the rendezvous of job llm-7, and the launch command names it for good; "
        "with $rendezvous in its place the job could be started again at another"
    )
    assert controller.isolate("n2", "d-1", "slow").what == "job llm-7 would have 2 nodes left and needs 3"
    assert all(node.is_usable for node in controller.nodes())
    before = start_all(options)
    controller = TorchrunController(replace(options, rendezvous_node="n1"))
    report = controller.restart(Restart("d-1", "llm-7", exclude=("n1",)))
    assert report.outcome == "refused"
    assert "this needs a person: n1 hosts the rendezvous of job llm-7" in report.what
    assert find_pids(options) == before
    launch = f"echo $node at $rendezvous >> {tmp_path}/met\n{options.reach.launch}"
    moving = replace(reached(options, launch=launch), rendezvous_node="n1")
    assert TorchrunController(moving).isolate("n1", "d-1", "dead NIC").what == (
        "n1, where the agents meet, takes no part in the next start: dead NIC"
    )
    assert sorted(find_pids(options)) == ["n1", "n2", "n3"], "until then nobody can do without it"
    assert TorchrunController(moving).isolate("n1", "d-1", "dead NIC").outcome == "already"
    order = Restart("d-1", "llm-7", exclude=("n1",))
    assert TorchrunController(moving).restart(order).what == "job llm-7 is started again on n2, n3"
    assert TorchrunController(moving).release("n1", "d-1").outcome == "done"
    assert sorted((tmp_path / "met").read_text().splitlines()) == ["n1 at n2", "n2 at n2", "n3 at n2"]


def test_a_restart_stops_nothing_without_enough_nodes_and_leaves_out_what_it_was_told(
    options: TorchrunOptions,
) -> None:
    before = start_all(options)
    controller = TorchrunController(options)
    report = controller.restart(Restart("d-2", "llm-7", exclude=("n1",), nnodes=3))
    assert (report.outcome, report.what) == ("refused", "job llm-7 needs 3 nodes and only 2 are in service")
    assert find_pids(options) == before
    controller.isolate("n3", "d-1", "slow")
    order = Restart("d-2", "llm-7", exclude=("n1",), checkpoint="/ckpt/it's 7", environment={"LOCKSTEP_TP": "2"})
    report = controller.restart(order)
    assert (report.outcome, report.job) == ("done", "llm-7"), report
    assert report.what == "job llm-7 is started again on n2"
    after = find_pids(options)
    assert list(after) == ["n2"]
    assert after["n2"] != before["n2"]
    reported = Path(f"/proc/{after['n2']}/environ").read_bytes().split(b"\0")
    assert {b"LOCKSTEP_RESUME_FROM=/ckpt/it's 7", b"LOCKSTEP_TP=2", b"LOCKSTEP_RESTART_MARK=d-2"} <= set(reported)
    assert controller.restart(order).outcome == "already"
    assert find_pids(options) == after
    assert controller.restart(Restart("d-3", "llm-7", exclude=("n3",), nnodes=2)).outcome == "done"
    report = controller.release("n3", "d-1")
    assert report.what == "n3 is in service; the job runs on the 2 nodes that it was started for"
    assert sorted(find_pids(options)) == ["n1", "n2"], "it grows when somebody has decided that"
    assert all(node.is_usable for node in controller.nodes())


def test_death_in_the_middle_of_a_restart_starts_nothing_twice(options: TorchrunOptions) -> None:
    start_all(options)
    order = Restart("d-2", "llm-7", exclude=("n1",))
    broken = reached(options, launch=f"[ $node = n2 ] || exit 7\n{options.reach.launch}")
    report = TorchrunController(broken).restart(order)
    assert (report.outcome, report.what) == ("failed", "on n3: sh ended with 7: it said nothing")
    before = find_pids(options)
    assert list(before) == ["n2"]
    assert TorchrunController(options).restart(order).outcome == "done"
    after = find_pids(options)
    assert list(after) == ["n2", "n3"]
    assert after["n2"] == before["n2"]


def test_a_job_without_agents_has_ended_and_what_is_not_this_job_is_refused(options: TorchrunOptions) -> None:
    controller = TorchrunController(options)
    assert controller.job("llm-7") == JobView("llm-7", "ended")
    assert controller.reattempt("llm-7", "d-3").what == "no worker of job llm-7 runs"
    assert controller.job("llm-8") is None
    assert controller.isolate("n9", "m", "slow").what == "job llm-7 has no node n9"
    assert controller.restart(Restart("m", "llm-8")).what == "this controller knows job llm-7 only, not llm-8"
    assert controller.reattempt("llm-8", "m").outcome == "refused"


def test_a_dry_run_changes_nothing_and_a_reattempt_kills_one_worker_once(options: TorchrunOptions) -> None:
    before = start_all(options)
    dry = TorchrunController(replace(options, dry_run=True))
    assert dry.isolate("n2", "m", "slow").what == "would stop the agent of n2"
    assert dry.restart(Restart("m", "llm-7", nnodes=2)).what == (
        "would stop all agents of job llm-7 and start them on n1, n2"
    )
    assert dry.reattempt("llm-7", "m").what.startswith("would kill process ")
    assert find_pids(options) == before
    assert not options.state.exists()
    controller = TorchrunController(options)
    report = controller.reattempt("llm-7", "d-3")
    assert report.outcome == "done"
    assert report.what.endswith("on n1, so that job llm-7 starts its workers again in place: restart 1 of 1")
    wait_until(lambda: [w.restarts for w in look_for(options).find_workers("n1")] == [1], "the worker is back")
    assert controller.reattempt("llm-7", "d-3").outcome == "already"
    assert controller.reattempt("llm-7", "d-4").what == "job llm-7 has used up its 1 restarts"
    assert find_pids(options) == before


def test_nodes_that_do_not_answer_and_options_that_make_no_sense_are_said(options: TorchrunOptions) -> None:
    controller = TorchrunController(replace(reached(options, on_node=("sh", "-c", "sleep 600")), timeout_s=0.3))
    with pytest.raises(ControllerDown, match=r"did not end within 0\.3 s and was killed"):
        controller.job("llm-7")
    with pytest.raises(BadInput, match="min_nodes=4 of 3 is wrong"):
        replace(options, min_nodes=4)
    with pytest.raises(BadInput, match="is no name of a node"):
        replace(options, nodes=("n1", "n[2-3]"))
    with pytest.raises(BadInput, match="unknown fields"):
        Reach("/run/{host}.pid", "true")


class LeapingClock(ManualClock):
    """A clock that is much later after each wait: who gives up does so soon, and commands have all their time."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return super().wait(event, 100 * timeout_s)


def test_an_agent_that_does_not_end_is_a_failure(options: TorchrunOptions, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = start_all(options)
    os.kill(pids["n2"], signal.SIGSTOP)
    monkeypatch.setattr(torchrun, "Deadline", lambda timeout_s: Deadline(timeout_s, LeapingClock()))
    monkeypatch.setattr(torchrun, "_LEFT_S", LIMIT_S / 2)  # what the last question has, too
    try:
        report = TorchrunController(options).isolate("n2", "d-1", "slow")
        assert (report.outcome, report.what) == ("failed", "the agent of n2 was asked to end and still runs")
    finally:
        os.kill(pids["n2"], signal.SIGCONT)
