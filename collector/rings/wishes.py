"""What the server wishes of ring files: more detail for a while, or the last minutes in full, once."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lockstep import wire
from lockstep.clock import NS_PER_S
from lockstep.rings.sampling import WHOLE_SHARE
from lockstep.wish import Wish

MOST_MINUTES = 10
_LEVELS = {"operations": wire.OPERATIONS, "transfers": wire.TRANSFERS, "steps": wire.STEPS}
_MOST_REMEMBERED = 1_024


@dataclass(frozen=True)
class Target:
    """Processes of a job: all, or those of some ranks."""

    job: str
    ranks: frozenset[int] | None

    def means(self, job: str, rank: int | None) -> bool:
        return job == self.job and (self.ranks is None or rank in self.ranks)


@dataclass(frozen=True)
class Detail:
    """How much the plugin shall see."""

    level: int
    share: int  # of operations whose steps are recorded, of 65,536


@dataclass(frozen=True)
class DetailWish:
    target: Target
    detail: Detail


@dataclass(frozen=True)
class MinutesWish:
    id: str
    target: Target
    span_ns: int
    expires_ns: int


def wanted_detail(wishes: Iterable[DetailWish], usual: Detail, job: str, rank: int | None) -> Detail:
    """Return the most that is wished for a process, and never less than what it does by itself."""
    meant = [wish.detail for wish in wishes if wish.target.means(job, rank)]
    return Detail(
        max([usual.level, *(each.level for each in meant)]), max([usual.share, *(each.share for each in meant)])
    )


def read_details(wishes: Sequence[Wish], now_ns: int) -> list[DetailWish]:
    """Return the wishes for detail that are in force; what makes no sense is none."""
    alive = (wish for wish in wishes if wish.kind == "detail" and wish.expires_ns > now_ns)
    return [read for wish in alive if (read := _read_detail(wish))]


class MinutesWishes:
    """Hands out each wish for the last minutes once, however often it is repeated."""

    def __init__(self) -> None:
        self._done: dict[str, int] = {}  # when each expires

    def new(self, wishes: Sequence[Wish], now_ns: int) -> list[MinutesWish]:
        """Return the wishes that have not come before."""
        self._done = {known: end_ns for known, end_ns in self._done.items() if end_ns > now_ns}
        alive = [wish for wish in wishes if wish.kind == "last_minutes" and wish.expires_ns > now_ns]
        fresh = [wish for wish in alive if wish.id not in self._done][: _MOST_REMEMBERED - len(self._done)]
        self._done |= {wish.id: wish.expires_ns for wish in fresh}
        return [read for wish in fresh if (read := _read_minutes(wish))]


def _read_detail(wish: Wish) -> DetailWish | None:
    target, level, share = _target(wish), _LEVELS.get(str(wish.details.get("level"))), wish.details.get("share", 1.0)
    if target is None or level is None or not _is_number(share) or not 0 <= share <= 1:
        return None
    return DetailWish(target, Detail(level, round(share * WHOLE_SHARE)))


def _read_minutes(wish: Wish) -> MinutesWish | None:
    target, minutes = _target(wish), wish.details.get("minutes", MOST_MINUTES)
    if target is None or not _is_number(minutes) or not 0 < minutes <= MOST_MINUTES:
        return None
    return MinutesWish(wish.id, target, round(minutes * 60 * NS_PER_S), wish.expires_ns)


def _target(wish: Wish) -> Target | None:
    job, ranks = wish.details.get("job"), wish.details.get("ranks")
    if not isinstance(job, str):
        return None
    if ranks is None:
        return Target(job, None)
    if not isinstance(ranks, list) or not all(isinstance(rank, int) for rank in ranks):
        return None
    return Target(job, frozenset(ranks))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
