"""What happens in a scenario, line by line, in words that simulator and testbed both understand.

at 20 s fail nic:h3/eth1 tx to 50 %          a rate: NICs, links, switches, gpu:, pcie:, nvlink:
at 20 s fail link:leaf0--spine1 losing 5 %   packets; `delayed 2 ms` and `down` are for links and NICs too
at 20 s fail link:leaf0--spine1 to 30 % above 1 MB       only in operations of that size and more
at 20 s fail nic:h3/eth1 down for 2 s every 60 s         again and again
at 20 s fail nic:h3/eth1 over to eth2 after 4 s          port failover: dead; then the other carries both
at 20 s fail gpu:h1/0 to 60 % over 30 s      little by little
at 20 s fail gpu:h1/0 to 60 % in 5 % of steps            now and then
at 20 s fail gpu:h1/0 stuck                  its kernel never ends
at 20 s fail host:h2 starved to 20 %         CPU that is left for the proxy threads
at 20 s fail host:h2 late 300 ms             before it enqueues; also of a rank
at 20 s fail host:h2 gone                    with its telemetry; `silent`: its telemetry alone
at 20 s fail rank:5 stopped                  or killed, absent (never enqueues), mismatched, deadlocked
at 20 s fail fabric to 70 %                  somebody else's traffic takes the rest of every link between switches
at 60 s heal nic:h3/eth1                     or `heal`, which heals everything
at 30 s pause 12 s                           checkpoint or evaluation; `pause rank:3 2 s`: garbage collection
at 40 s restart after 5 s                    the next attempt; also `restart without h3 after 5 s`, and with a
                                             spare: `restart with h8 for h3 after 5 s`
at 40 s second mix                           from then on the job's other sequence of operations
"""

import re
from collections.abc import Iterator, Sequence
from typing import Literal, get_args

from pydantic import ConfigDict, Field

from lockstep.errors import BadScenario
from lockstep.verdict import Frozen, Side

Plain = Literal["down", "stuck", "gone", "silent", "stopped", "killed", "absent", "mismatched", "deadlocked"]
Failure = Literal[Plain, "rate", "losing", "delayed", "over", "starved", "late"]
Effect = Literal[Failure, "heal", "pause", "restart", "second mix"]

_KINDS_BY_EFFECT: dict[str, tuple[str, ...]] = {
    "rate": ("nic", "link", "switch", "gpu", "pcie", "nvlink", "fabric"),
    "losing": ("nic", "link", "switch"),
    "delayed": ("nic", "link", "switch"),
    "down": ("nic", "link", "switch"),
    "over": ("nic",),
    "stuck": ("gpu",),
    "starved": ("host",),
    "late": ("host", "rank"),
    "gone": ("host",),
    "silent": ("host",),
    "stopped": ("rank",),
    "killed": ("rank",),
    "absent": ("rank",),
    "mismatched": ("rank",),
    "deadlocked": ("rank",),
}

_PART = r"(?P<part>(?:nic|link|switch|gpu|pcie|nvlink|host|rank):\S+|fabric)"
_NUMBER = r"\d+(?:\.\d+)?"
_FAIL = re.compile(
    rf"fail {_PART}(?: (?P<side>tx|rx))? "
    rf"(?:(?P<plain>{'|'.join(get_args(Plain))})"
    rf"|(?P<starved>starved )?to (?P<rate>{_NUMBER}) %"
    rf"|losing (?P<losing>{_NUMBER}) %"
    rf"|(?P<wait>delayed|late) (?P<ms>{_NUMBER}) ms)"
    rf"(?: above (?P<above>{_NUMBER}) MB)?"
    rf"(?: over (?P<over>{_NUMBER}) s)?"
    rf"(?: in (?P<share>{_NUMBER}) % of steps)?"
    rf"(?: for (?P<lasting>{_NUMBER}) s(?: every (?P<every>{_NUMBER}) s)?)?"
)
_OVER = re.compile(rf"fail {_PART} over to (?P<spare>eth\d+) after (?P<stall>{_NUMBER}) s")
_HEAL = re.compile(rf"heal(?: {_PART})?")
_PAUSE = re.compile(rf"pause(?: {_PART})? (?P<lasting>{_NUMBER}) s")
_WHO_LEAVES = r"without (?P<left>h\d+)|with (?P<spare>h\d+) for (?P<left_for>h\d+)"
_RESTART = re.compile(rf"restart(?: (?:{_WHO_LEAVES}))? after (?P<lasting>{_NUMBER}) s")
_LINE = re.compile(rf"at (?P<at>{_NUMBER}) s (?P<what>.+)")


class Section(Frozen):
    """Base of what scenarios are made of: TOML can write infinity, but no cluster can have it."""

    model_config = ConfigDict(allow_inf_nan=False)


class Fault(Section):
    """Something changes in a scenario, at a moment counted from its beginning."""

    at_s: float = Field(ge=0)
    effect: Effect
    part: str | None = None
    side: Side | None = None
    amount: float | None = Field(None, description="what is left of a rate, loss as a share, or seconds")
    above_bytes: int = Field(0, description="only operations of at least this size")
    over_s: float = Field(0.0, description="how long it takes to come fully")
    share: float = Field(1.0, description="of the steps in which it is there")
    lasting_s: float | None = None
    every_s: float | None = None
    stall_s: float = Field(0.0, description="of a failover: how long the traffic stands still")
    spare: str | None = Field(None, description="the NIC that takes over, or the host that joins")

    @property
    def kind(self) -> str:
        """What sort of part it is: nic, link, rank, or nothing."""
        return (self.part or "").partition(":")[0]

    @property
    def name(self) -> str:
        """The part without its kind, such as h3/eth1."""
        return (self.part or "").partition(":")[2]

    def level(self, now_s: float) -> float:
        """Return how much of it is there at a moment, 0 to 1; of a failover half until the other NIC takes over.

        >>> flap = parse_fault("at 20 s fail nic:h3/eth1 down for 2 s every 60 s")
        >>> [flap.level(now_s) for now_s in (19, 21, 23, 81)]
        [0.0, 1.0, 0.0, 1.0]
        """
        since = now_s - self.at_s
        if since < 0:
            return 0.0
        if self.every_s:
            since %= self.every_s
        if self.lasting_s is not None and since >= self.lasting_s:
            return 0.0
        if since < self.stall_s:
            return 0.5
        return min(since / self.over_s, 1.0) if self.over_s else 1.0


def parse_fault(line: str) -> Fault:
    """Return the fault in a line, or raise BadScenario that says what was not understood.

    >>> parse_fault("at 20 s fail nic:h3/eth1 tx to 50 %").amount
    0.5
    """
    whole = _LINE.fullmatch(" ".join(line.split()))
    if not whole:
        raise BadScenario(f"{line!r} does not begin with a moment, such as: at 20 s fail nic:h3/eth1 tx to 50 %")
    at_s, what = float(whole["at"]), whole["what"]
    if what == "second mix":
        return Fault(at_s=at_s, effect="second mix")
    if match := _HEAL.fullmatch(what):
        return Fault(at_s=at_s, effect="heal", part=match["part"])
    if match := _PAUSE.fullmatch(what):
        if (match["part"] or "rank:").partition(":")[0] not in ("rank", "host"):
            raise BadScenario(f"{line!r}: only a rank, a host or the whole job pauses")
        return Fault(at_s=at_s, effect="pause", part=match["part"], lasting_s=float(match["lasting"]))
    if match := _RESTART.fullmatch(what):
        left = match["left"] or match["left_for"]
        part = f"host:{left}" if left else None
        return Fault(at_s=at_s, effect="restart", part=part, spare=match["spare"], lasting_s=float(match["lasting"]))
    if match := _OVER.fullmatch(what):
        ends = {"part": match["part"], "spare": match["spare"]}
        return _checked(line, Fault(at_s=at_s, effect="over", stall_s=float(match["stall"]), **ends))
    if match := _FAIL.fullmatch(what):
        return _checked(line, _failure(at_s, match))
    raise BadScenario(f"{line!r} is not understood; simulator/faults.py lists what can happen")


def _failure(at_s: float, match: "re.Match[str]") -> Fault:
    effect, amount = _effect_of(match)
    return Fault(
        at_s=at_s,
        effect=effect,
        part=match["part"],
        side=match["side"],
        amount=amount,
        above_bytes=int(float(match["above"] or 0) * 1e6),
        over_s=float(match["over"] or 0),
        share=float(match["share"] or 100) / 100,
        lasting_s=_maybe(match["lasting"]),
        every_s=_maybe(match["every"]),
    )


def _checked(line: str, fault: Fault) -> Fault:
    kinds = _KINDS_BY_EFFECT[fault.effect]
    if fault.kind not in kinds and fault.part not in kinds:
        raise BadScenario(f"{line!r}: only these can be {fault.effect}: {', '.join(kinds)}")
    for is_wrong, why in _complaints(fault):
        if is_wrong:
            raise BadScenario(f"{line!r}: {why}")
    return fault


def _complaints(fault: Fault) -> Iterator[tuple[bool, str]]:
    """Yield what might be wrong about a failure, each with whether it is."""
    amount = fault.amount if fault.amount is not None else 0.5
    yield fault.side is not None and fault.kind not in ("nic", "link"), "only a NIC or a link has a side"
    yield fault.effect in ("rate", "starved") and not 0 < amount < 1, "what is left is more than nothing and not all"
    yield fault.effect == "losing" and not 0 < amount <= 1, "a loss is a share of 100 %"
    yield not 0 < fault.share <= 1, "so many steps there are not"
    yield (
        fault.every_s is not None and fault.lasting_s is not None and fault.lasting_s >= fault.every_s,
        "it never ends",
    )
    by_size = fault.above_bytes > 0 and fault.effect not in ("rate", "losing", "delayed")
    yield by_size, "only what slows a wire can depend on the size of an operation"


def _effect_of(match: "re.Match[str]") -> tuple[Effect, float | None]:
    if match["plain"]:
        return next(effect for effect in get_args(Plain) if effect == match["plain"]), None
    if match["losing"]:
        return "losing", float(match["losing"]) / 100
    if match["ms"]:
        return ("delayed" if match["wait"] == "delayed" else "late"), float(match["ms"]) / 1e3
    return ("starved" if match["starved"] else "rate"), float(match["rate"]) / 100


def _maybe(text: str | None) -> float | None:
    return None if text is None else float(text)


def active_faults(timeline: tuple[Fault, ...], now_s: float) -> tuple[Fault, ...]:
    """Return the failures that are there at a moment: begun, neither over nor healed, the later of two alike."""
    there: dict[tuple[str, str | None, str | None], Fault] = {}
    for fault in sorted(timeline, key=lambda fault: fault.at_s):
        if fault.at_s > now_s:
            break
        if fault.effect == "heal":
            there = {key: old for key, old in there.items() if fault.part not in (None, old.part)}
        elif fault.effect in _KINDS_BY_EFFECT:
            there[fault.effect, fault.part, fault.side] = fault
    return tuple(fault for fault in there.values() if fault.level(now_s) > 0)


Interval = tuple[float, float]  # seconds of the scenario; the end is infinite where nothing ends it

FOREVER = float("inf")


def intervals_of(fault: Fault, timeline: tuple[Fault, ...], until_s: float) -> list[Interval]:
    """Return when a fault is there, for all beginnings up to a moment.

    >>> flap = parse_fault("at 20 s fail nic:h3/eth1 down for 2 s every 60 s")
    >>> intervals_of(flap, (flap, parse_fault("at 81 s heal")), until_s=200)
    [(20.0, 22.0), (80.0, 81.0)]
    """
    over_s = healed_s(fault, timeline)
    last_s = min(until_s, over_s)
    times = int((last_s - fault.at_s) // fault.every_s) + 1 if fault.every_s and last_s >= fault.at_s else 1
    begins = (fault.at_s + number * (fault.every_s or 0.0) for number in range(times))
    lasting_s = FOREVER if fault.lasting_s is None else fault.lasting_s
    return [(begin, min(begin + lasting_s, over_s)) for begin in begins if begin <= until_s and begin < over_s]


def healed_s(fault: Fault, timeline: tuple[Fault, ...]) -> float:
    """Return when a fault is healed for the first time after it has begun."""
    heals = [other.at_s for other in timeline if other.effect == "heal" and other.part in (None, fault.part)]
    return min((timestamp for timestamp in heals if timestamp > fault.at_s), default=FOREVER)


def merge_intervals(intervals: list[Interval]) -> list[Interval]:
    """Return the intervals in order, those that touch as one.

    >>> merge_intervals([(5.0, 9.0), (1.0, 2.0), (8.0, 10.0)])
    [(1.0, 2.0), (5.0, 10.0)]
    """
    found: list[Interval] = []
    for begin, end in sorted(intervals):
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((begin, end))
    return found


def over_s(timeline: Sequence[Fault]) -> float:
    """Return when the last part that was healed became well, or never when one was not."""
    heals = [fault for fault in timeline if fault.effect == "heal"]
    broken = {fault.part for fault in timeline if fault.part and fault.effect not in ("heal", "pause", "restart")}
    if not heals or not all(any(heal.part in (None, part) for heal in heals) for part in broken):
        return FOREVER
    return max(heal.at_s for heal in heals)


def is_within(intervals: list[Interval], now_s: float) -> bool:
    return any(begin <= now_s < end for begin, end in intervals)
