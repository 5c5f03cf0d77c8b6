"""What one receiver is told now: each matter once as it begins, changes and ends, and never a storm.

After a message about a job, what else begins in the same job waits for `group_s` and comes in one message with a
list, at receivers that people read. Alertmanager groups by itself, and programs behind a webhook want every event.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase

from api.alerts.matters import Situation
from api.alerts.updating import is_news, patience_ns
from lockstep.alert_settings import Family, Target
from lockstep.control.deliveries import Outgoing
from lockstep.news import Matter, News, NewsKind, Thread

IsSilenced = Callable[[Matter], bool]

_GATHERING = ("slack", "email", "pagerduty")
_HOLDING_STATE = ("alertmanager", "pagerduty")  # what they show lasts until it is resolved
_PROGRAMS = ("webhook",)  # they get every event in its order
_OPENED: dict[Family, NewsKind] = {
    "incident": "incident.opened",
    "decision": "decision.proposed",
    "lockstep": "lockstep.troubled",
}
_CHANGED: dict[Family, NewsKind] = {"incident": "incident.updated", "decision": "decision.proposed"}
_CLOSED: dict[Family, NewsKind] = {
    "incident": "incident.closed",
    "decision": "decision.settled",
    "action": "action.settled",
    "lockstep": "lockstep.recovered",
}
_ACTIONS: dict[str, NewsKind] = {"done": "action.executed", "failed": "action.failed", "undone": "action.undone"}
# What only those need who hold a state, and what is none that lasts.
_ONLY_FOR_STATE: tuple[NewsKind, ...] = ("decision.settled", "action.settled")
_NOT_FOR_STATE: tuple[NewsKind, ...] = ("action.executed", "action.undone")


@dataclass(frozen=True)
class Plan:
    """Messages to write, and what the receiver knows thereby."""

    outgoing: list[Outgoing] = field(default_factory=list)
    threads: list[Thread] = field(default_factory=list)


@dataclass(frozen=True)
class Known:
    """What a receiver knows: its threads by subject, and since when there is somebody to tell."""

    threads: Mapping[str, Thread]
    since_ns: int


def plan_news(target: Target, known: Known, situation: Situation, is_silenced: IsSilenced, group_ns: int) -> Plan:
    """Return what this receiver is told now; the same input gives the same messages with the same ids."""
    plan = Plan()
    _tell_ended(plan, target, known, situation)
    _tell_changed(plan, target, known, situation, is_silenced, group_ns)
    back = _back_in_their_group(known, situation)
    plan.threads.extend(thread.model_copy(update={"is_over": False}) for thread in back.values())
    fresh = [
        matter
        for matter in situation.matters.values()
        if _is_fresh(known, matter)
        and matter.subject not in back
        and wants(target, matter)
        and not is_silenced(matter)
    ]
    for matters in _gathered(target, known, fresh, situation.now_ns, group_ns):
        _tell_fresh(plan, target, known, matters, situation.now_ns)
    return plan


def wants(target: Target, matter: Matter) -> bool:
    """Return whether the receiver asked for such news; grades are for incidents, jobs for what belongs to one."""
    if matter.family not in target.events:
        return False
    if matter.family == "incident" and matter.grade not in target.grades:
        return False
    return not target.jobs or not matter.job or any(fnmatchcase(matter.job, pattern) for pattern in target.jobs)


def _back_in_their_group(known: Known, situation: Situation) -> dict[str, Thread]:
    """Return what came back while others of the same message last: nobody was told that it had gone."""
    lasting = {
        thread.key for thread in known.threads.values() if not thread.is_over and thread.subject in situation.matters
    }
    return {
        subject: thread
        for subject, thread in known.threads.items()
        if thread.is_over and thread.key in lasting and subject in situation.matters
    }


def _is_fresh(known: Known, matter: Matter) -> bool:
    thread = known.threads.get(matter.subject)
    if matter.family == "action":  # it lies in the past already: told once, to those who were there
        return thread is None and matter.since_ns >= known.since_ns
    return thread is None or thread.is_over


def _gathered(
    target: Target, known: Known, fresh: Sequence[Matter], now_ns: int, group_ns: int
) -> Iterable[list[Matter]]:
    """Return what goes into one message each; what has to wait is left out, and found again next time."""
    ordered = sorted(fresh, key=lambda matter: (matter.since_ns, matter.subject))
    if target.kind not in _GATHERING:
        return [[matter] for matter in ordered]
    groups: dict[tuple[str, str, str], list[Matter]] = {}
    for matter in ordered:
        kind = matter.mark if matter.family == "action" else ""
        groups.setdefault((matter.family, matter.job, kind), []).append(matter)
    return [group for group in groups.values() if not _was_just_told(known, group[0], now_ns, group_ns)]


def _was_just_told(known: Known, matter: Matter, now_ns: int, group_ns: int) -> bool:
    kin = (t for t in known.threads.values() if (t.matter.family, t.matter.job) == (matter.family, matter.job))
    return any(now_ns - thread.told_ns < group_ns for thread in kin)


def _tell_fresh(plan: Plan, target: Target, known: Known, matters: list[Matter], now_ns: int) -> None:
    key = matters[0].subject
    kind = _ACTIONS.get(matters[0].mark) if matters[0].family == "action" else _OPENED[matters[0].family]
    told = _add(plan, target, known.threads.get(key), key, kind, matters, now_ns)
    for matter in matters:
        before = known.threads.get(matter.subject)
        number = (before.number if before else 0) + told
        plan.threads.append(_thread(target, key, number, now_ns, matter))


def _tell_changed(
    plan: Plan, target: Target, known: Known, situation: Situation, is_silenced: IsSilenced, group_ns: int
) -> None:
    for subject, thread in known.threads.items():
        matter = situation.matters.get(subject)
        if thread.is_over or matter is None or not is_news(thread.matter, matter) or is_silenced(matter):
            continue
        if situation.now_ns - thread.told_ns < patience_ns(thread, matter, group_ns):
            continue  # it may change again at once; what it is by then is told
        kind = _ACTIONS.get(matter.mark) if matter.family == "action" else _CHANGED.get(matter.family)
        told = _add(plan, target, thread, thread.key, kind, [matter], situation.now_ns, thread.matter)
        plan.threads.append(_thread(target, thread.key, thread.number + told, situation.now_ns, matter))


def _tell_ended(plan: Plan, target: Target, known: Known, situation: Situation) -> None:
    """Tell what is over, once the last of a message's matters is; only what was told before."""
    open_threads = [thread for thread in known.threads.values() if not thread.is_over]
    ended = {thread.subject: thread for thread in open_threads if thread.subject not in situation.matters}
    lasting = {thread.key for thread in open_threads if thread.subject not in ended}
    groups: dict[str, list[Thread]] = {}
    for thread in ended.values():
        groups.setdefault(thread.key, []).append(thread)
    for key, threads in groups.items():
        matters = [situation.over.get(thread.subject, thread.matter) for thread in threads]
        told = 0 if key in lasting else _end(plan, target, key, threads, matters, situation.now_ns)
        plan.threads.extend(
            thread.model_copy(update={"is_over": True, "number": thread.number + told, "told_ns": situation.now_ns})
            for thread in threads
        )


def _end(plan: Plan, target: Target, key: str, threads: list[Thread], matters: list[Matter], now_ns: int) -> int:
    """Add the message that something is over; the labels are those that were told, the reason is the newest."""
    if not any(thread.number for thread in threads):
        return 0
    told = [
        thread.matter.model_copy(update={"reason": matter.reason})
        for thread, matter in zip(threads, matters, strict=True)
    ]
    return _add(plan, target, threads[0], key, _CLOSED[threads[0].matter.family], told, now_ns, is_end=True)


def _add(
    plan: Plan,
    target: Target,
    thread: Thread | None,
    key: str,
    kind: NewsKind | None,
    matters: list[Matter],
    now_ns: int,
    before: Matter | None = None,
    is_end: bool = False,
) -> int:
    """Add one message, unless it is not for this kind of receiver; return how many were added."""
    holds_state = target.kind in _HOLDING_STATE
    if kind is None or kind in (_NOT_FOR_STATE if holds_state else _ONLY_FOR_STATE):
        return 0
    number = thread.number if thread else 0
    name = hashlib.sha256(f"{target.name}|{matters[0].subject}|{number}|{kind}".encode()).hexdigest()
    news = News(id=f"evt_{name[:26]}", kind=kind, key=key, ts_ns=now_ns, matters=tuple(matters), before=before)
    plan.outgoing.append(Outgoing(target.name, news, replaces=target.kind not in _PROGRAMS, is_end=is_end))
    return 1


def _thread(target: Target, key: str, number: int, now_ns: int, matter: Matter) -> Thread:
    return Thread(target=target.name, subject=matter.subject, key=key, number=number, told_ns=now_ns, matter=matter)
