"""When a change of what was told is worth a message: what a person would read, soon when it is worse, never a storm.

The analyzer writes an incident anew with every look, every two seconds, and each time some figure is another. A
person reads of another class, component or grade, and of an impact that is another by a step.
"""

from lockstep.news import Matter, Thread

IMPACT_STEP = 2.0  # times what the job loses: from 1.2 to 1.4 times its step time
LEAST_IMPACT = 0.2  # smaller differences are no reason to write to anybody, twice the loss or not
MOST_DOUBLINGS = 5  # 30 s become 16 minutes
_GRADES = ("note", "alert", "isolate")
_STOPPED = ("comm_hang", "noncomm_hang", "crash")


def is_news(told: Matter, now: Matter) -> bool:
    """Return whether a receiver that was told the one would want to know the other."""
    return told.mark != now.mark or _impact_rose(told, now) or _impact_fell(told, now)


def patience_ns(thread: Thread, now: Matter, group_ns: int) -> int:
    """Return for how long after the last message an update waits, for it may change again at once.

    An incident that wavers between two components or grades would be told of for ever: each update that does not say
    that it is worse waits twice as long as the one before it. What is worse never waits for longer than `group_ns`,
    and what wavers cannot be worse twice without an update in between that it is not.
    """
    if now.family != "incident" or _is_worse(thread.matter, now):
        return group_ns
    return group_ns << min(max(thread.number - 1, 0), MOST_DOUBLINGS)


def _is_worse(told: Matter, now: Matter) -> bool:
    stops = now.fault_class in _STOPPED and told.fault_class not in _STOPPED
    return stops or _GRADES.index(now.grade) > _GRADES.index(told.grade) or _impact_rose(told, now)


def _impact_rose(told: Matter, now: Matter) -> bool:
    return now.slowdown is not None and _is_step(told.slowdown or 1.0, now.slowdown)


def _impact_fell(told: Matter, now: Matter) -> bool:
    return told.slowdown is not None and now.slowdown is not None and _is_step(now.slowdown, told.slowdown)


def _is_step(lower: float, higher: float) -> bool:
    """Return whether what the job loses in the higher case is more by a step.

    >>> _is_step(1.2, 1.4), _is_step(1.2, 1.3), _is_step(1.02, 1.1)
    (True, False, False)
    """
    gained = round(higher - lower, 6)  # 1.4 - 1.2 is a little less than 0.2
    return gained >= LEAST_IMPACT and round(higher - 1, 6) >= round(IMPACT_STEP * (lower - 1), 6)
