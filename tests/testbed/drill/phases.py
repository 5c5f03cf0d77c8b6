"""What happens in a drill: a host dies, a host is accused that is well; each until all is over.

Nothing is told to Lockstep: every verdict is the analyzer's, every decision the planner's. Only repairs are ours, and
what a person does about a decision that is held.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lockstep.decision import Decision
from lockstep.errors import BadInput
from lockstep.execution import Execution, Order
from lockstep.state.decisions import find_execution, give_order, list_decisions
from lockstep.state.incidents import open_incidents
from tests.testbed.drill.site import Site, drill_site, find_loss_difference
from tests.testbed.drill.timeline import Timeline, host_of, make_timeline, note_broken, note_mended, read_records
from tests.testbed.services import await_found
from tests.testbed.slurm_rank import faults_of

Note = Callable[[str], None]

_WELL = "inf"  # in place of the seconds after which tasks freeze: a node with a fault of another kind
_PERSON = "ada"


def run_drill(folder: Path, phases: Sequence[str], note: Note) -> Timeline:
    """Play phases in a new folder and return their timeline; needs root and an installed Slurm, and takes minutes."""
    if unknown := [name for name in phases if name not in PHASES]:
        raise BadInput(f"there is no phase {', '.join(unknown)}; there are {', '.join(PHASES)}")
    # So many nodes may go that the wrong verdict is the first that is one too many.
    with drill_site(folder, nodes_per_hour=sum(name != FALSE_VERDICT for name in phases)) as site:
        for name in phases:
            note(f"{name}: job {site.job} trains on {', '.join(site.nodes_of(site.job))}")
            PHASES[name](site, note)
    with site.head.open_store() as store, site.head.open_control() as control:
        records = read_records(store, control, folder / "steps.jsonl")
    return make_timeline(records, find_loss_difference(folder))


def lose_host(site: Site, note: Note) -> None:
    """Let a host die, with its agent and its slurmd, and bring it back when the job is elsewhere."""
    node = _choose_node(site)
    broke_ns = _break(site, HOST_DIES, f"host:{node}")
    undo = [site.stop_host(node), site.stop_daemon(node)]

    def repair() -> None:
        for each in undo:
            each()

    _follow_replacement(site, node, broke_ns, repair, note)


def doubt_verdict(site: Site, note: Note) -> None:
    """Let a host look dead that is well, as while it is moved; a person lets it be replaced, thinks again, undoes."""
    node = _choose_node(site)
    broke_ns = _break(site, FALSE_VERDICT, f"host:{node}")
    wake = site.stop_host(node)
    held = await_found(lambda: _find_held(site, node), f"a decision on {node} is held")
    note(f"held: {held.action}: {held.held_because}")
    _order(site, held, "approve", "its verdict says that it is gone")
    await_found(lambda: find_execution(site.control, held.id), "the approved decision is begun")
    wake()
    note_mended(site.control, f"host:{node}", "it goes on", time.time_ns())
    _order(site, held, "undo", "it answers again")
    undone = await_found(lambda: _find_undone(site, held), "the undo is carried out")
    site.job = undone.new_job or site.job
    site.await_step(max(undone.ended_ns or 0, broke_ns))
    note(f"undone: {node} is {site.state_of(node)}")


FALSE_VERDICT, HOST_DIES = "false verdict", "host dies"
PHASES: Mapping[str, Callable[[Site, Note], None]] = {HOST_DIES: lose_host, FALSE_VERDICT: doubt_verdict}


def _choose_node(site: Site) -> str:
    """Return a node of the job that is not the first, on which its batch script runs."""
    return site.nodes_of(site.job)[1]


def _break(site: Site, phase: str, part: str) -> int:
    now_ns = time.time_ns()
    note_broken(site.control, phase, part, now_ns)
    return now_ns


def _follow_replacement(site: Site, node: str, broke_ns: int, repair: Callable[[], None], note: Note) -> None:
    """Wait until the job goes on without a node, repair that, and wait until it is back and the job warm."""
    faults_of(site.folder, node).write_text(_WELL)  # its test lasts until this is gone
    run = site.await_taken(node, broke_ns)
    note(f"taken away: {run.action}, {[(step.act, step.message) for step in run.steps]}")
    site.job = run.new_job or site.job
    first = site.await_step(run.ended_ns or broke_ns)
    note(f"step {first.step} is done, from checkpoint {first.resumed_from}")
    repair()
    faults_of(site.folder, node).unlink()
    site.await_returned(node)
    note(f"{node} is back in service")
    site.await_warm(first.time_ns)


def _find_held(site: Site, node: str) -> Decision | None:
    mine = [each for each in open_incidents(site.control) if host_of(each.verdict.component) == node]
    made = [found for each in mine for found in list_decisions(site.control, incident=each.id)]
    return next((each for each in made if each.isolate and each.held_because), None)


def _find_undone(site: Site, decision: Decision) -> Execution | None:
    run = find_execution(site.control, decision.id)
    return run if run is not None and run.state == "undone" else None


def _order(site: Site, decision: Decision, kind: str, why: str) -> None:
    order = {"decision": decision.id, "kind": kind, "who": _PERSON, "why": why, "ts_ns": time.time_ns()}
    give_order(site.control, Order.model_validate(order))
