"""Who never arrived: one look at a job, from how far everybody has come to the part that keeps them."""

from analyzer.context import Context
from analyzer.finding import Finding
from analyzer.hangs.facts import HangMemory, HangOptions, ProgressFacts
from analyzer.hangs.operations import name_circle, name_operations
from analyzer.hangs.processes import Scene, name_processes, name_unheard
from analyzer.hangs.standstill import Standstill, find_standstill
from analyzer.hangs.waits import trace_waits

# If more than half of a job keeps the others waiting, nobody in particular does: it loads, saves or compiles.
_MOST_ORIGINS = 0.5


def find_hangs(
    facts: ProgressFacts, memory: HangMemory, context: Context, options: HangOptions
) -> tuple[list[Finding], HangMemory]:
    """Return the parts that a standstill comes from; nothing while the job moves, or pauses as a whole.

    Assumes that counts of one function in one communicator mean the same on all its ranks; groups in which they
    cannot are left out. Cost: O(lines log lines).
    """
    if len(facts.lines) == 0:
        return [], memory
    standstill = find_standstill(facts, context.silent, options)
    if not standstill.is_hang:
        return [], HangMemory()
    since_ns = _begin(standstill, memory)
    scene = Scene(facts, trace_waits(facts, standstill, context.roster), since_ns, options)
    return _name(scene, context, int(standstill.heard.sum())), HangMemory(since_ns)


def _begin(standstill: Standstill, memory: HangMemory) -> int:
    """Return when it began: the look before knows better, as long as it is the same standstill."""
    return standstill.since_ns if memory.since_ns is None else min(memory.since_ns, standstill.since_ns)


def _name(scene: Scene, context: Context, heard: int) -> list[Finding]:
    waits = scene.waits
    if len(waits.origins) > _MOST_ORIGINS * max(heard, 2):
        return []
    findings = name_processes(scene, waits.origins) + name_unheard(scene, is_new=True)
    if not findings and waits.stuck:  # who died or fell silent leaves operations behind that look stuck by themselves
        findings += name_operations(scene, context.job, context.topology)
    if not findings and len(waits.circling):
        findings.append(name_circle(scene, context.job))
    return findings or name_unheard(scene, is_new=False)
