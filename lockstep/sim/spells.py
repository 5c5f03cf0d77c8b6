"""From when to when something in a story lasts: turns that end, come again, or are healed, as stretches of time."""

from lockstep.sim.timeline import Turn

Spell = tuple[float, float]  # seconds of the story; the end is infinite where nothing ends it

FOREVER = float("inf")


def spells_of(turn: Turn, timeline: tuple[Turn, ...], until_s: float) -> list[Spell]:
    """Return when a turn is there, for all beginnings up to a moment.

    >>> from lockstep.sim.timeline import parse_turn
    >>> flap = parse_turn("at 20 s fail nic:h3/eth1 down for 2 s every 60 s")
    >>> spells_of(flap, (flap, parse_turn("at 81 s heal")), until_s=200)
    [(20.0, 22.0), (80.0, 81.0)]
    """
    heals = [other.at_s for other in timeline if other.effect == "heal" and other.part in (None, turn.part)]
    over_s = min((moment for moment in heals if moment > turn.at_s), default=FOREVER)
    last_s = min(until_s, over_s)
    times = int((last_s - turn.at_s) // turn.every_s) + 1 if turn.every_s and last_s >= turn.at_s else 1
    begins = (turn.at_s + number * (turn.every_s or 0.0) for number in range(times))
    lasting_s = FOREVER if turn.lasting_s is None else turn.lasting_s
    return [(begin, min(begin + lasting_s, over_s)) for begin in begins if begin <= until_s and begin < over_s]


def joined(spells: list[Spell]) -> list[Spell]:
    """Return the spells in order, those that touch as one.

    >>> joined([(5.0, 9.0), (1.0, 2.0), (8.0, 10.0)])
    [(1.0, 2.0), (5.0, 10.0)]
    """
    found: list[Spell] = []
    for begin, end in sorted(spells):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def is_within(spells: list[Spell], now_s: float) -> bool:
    return any(begin <= now_s < end for begin, end in spells)
