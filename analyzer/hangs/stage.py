"""Who never arrived: one look at a job, from how far everybody has come to the part that keeps them."""

from dataclasses import replace

from analyzer.context import Context
from analyzer.finding import Finding
from analyzer.hangs.crashes import name_first_ended, was_ended_by_request
from analyzer.hangs.facts import HangMemory, HangOptions, ProgressFacts
from analyzer.hangs.operations import name_circle, name_operations
from analyzer.hangs.processes import Scene, find_stopped, name_processes, name_unheard
from analyzer.hangs.standstill import Standstill, find_standstill
from analyzer.hangs.traffic import date_by_steps
from analyzer.hangs.waits import trace_waits
from analyzer.hangs.wires import name_down_nics
from lockstep.clock import NS_PER_S

# If more than half of a job keeps the others waiting, nobody in particular does: it loads, saves or compiles.
_MOST_ORIGINS = 0.5


def find_hangs(
    facts: ProgressFacts, memory: HangMemory, context: Context, options: HangOptions
) -> tuple[list[Finding], HangMemory]:
    """Return the parts that a standstill comes from; nothing while the job moves, or pauses as a whole.

    Assumes that counts of one function in one communicator mean the same on all its ranks; groups in which they
    cannot are left out. Cost: O(lines log lines).
    """
    if facts.all_move:
        return [], HangMemory()
    if len(facts.lines) == 0:
        return list(memory.findings), memory
    facts = _as_told_live(date_by_steps(facts))
    standstill = find_standstill(facts, context.silent, options)
    is_sure = standstill.is_hang
    if not is_sure:
        standstill = find_standstill(facts, context.silent, options, is_told=True)
    if not standstill.is_hang:
        # A job of which hardly anything is heard any more has not moved.
        return (list(memory.findings), memory) if 2 * len(facts.lines) < memory.lines else ([], HangMemory())
    since_ns = _begin(standstill, memory)
    scene = Scene(facts, trace_waits(facts, standstill, context.roster), since_ns, options)
    named = _name(scene, context, int(standstill.heard.sum())) if is_sure else _name_told(scene, context)
    return named, _remember(since_ns, named, memory, facts) if is_sure or named else HangMemory()


def _remember(since_ns: int, named: list[Finding], memory: HangMemory, facts: ProgressFacts) -> HangMemory:
    return HangMemory(since_ns, tuple(named), max(memory.lines, len(facts.lines)))


def _as_told_live(facts: ProgressFacts) -> ProgressFacts:
    """Return the facts with the rhythm of a collector where there is one, though few of its rows came."""
    is_slow = facts.heard_ns and not facts.is_dump
    return replace(facts, interval_ns=max(facts.interval_ns, NS_PER_S)) if is_slow else facts


def _begin(standstill: Standstill, memory: HangMemory) -> int:
    """Return when it began: the look before knows better, as long as it is the same standstill."""
    return standstill.since_ns if memory.since_ns is None else min(memory.since_ns, standstill.since_ns)


def _name(scene: Scene, context: Context, heard: int) -> list[Finding]:
    waits = scene.waits
    if was_ended_by_request(scene):
        return []
    if crashed := name_first_ended(scene):
        return crashed
    if len(waits.origins) > _MOST_ORIGINS * max(heard, 2):
        return []
    findings = name_processes(scene, waits.origins) + name_unheard(scene, is_new=True)
    if not findings and waits.stuck:  # who died or fell silent leaves operations behind that look stuck by themselves
        findings += name_operations(scene, context.job, context.topology)
    if not findings and len(waits.circling):
        findings.append(name_circle(scene, context.job))
    return findings or name_unheard(scene, is_new=False)


def _name_told(scene: Scene, context: Context) -> list[Finding]:
    """Return what events tell of a standstill that is too short to be told by itself."""
    if was_ended_by_request(scene):
        return []
    if crashed := name_first_ended(scene):
        return crashed
    stopped = find_stopped(scene, scene.involved)
    return name_processes(scene, stopped) if len(stopped) else name_down_nics(scene, context.topology)
