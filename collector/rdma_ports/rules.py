"""Which RDMA counter rises too fast: the rules of collector/data/rdma_rules.toml, and what each must remember."""

import tomllib
from collections import deque
from dataclasses import dataclass
from importlib.resources import files

from lockstep.clock import NS_PER_S

_SAMPLES = 60  # a window is remembered in so many parts, which bounds the memory and blurs its length by a sixtieth


@dataclass(frozen=True)
class CounterRule:
    """A counter must not grow by more than `threshold` within `window_s`."""

    counter: str  # name in sysfs
    threshold: int
    window_s: int
    severity: str  # as in events
    meaning: str  # what it says about the part, for a person

    @property
    def window_ns(self) -> int:
        return self.window_s * NS_PER_S


@dataclass(frozen=True)
class Rise:
    """A rule that fires, and what was seen."""

    rule: CounterRule
    before: int
    after: int
    span_ns: int  # from `before` to `after`

    def __str__(self) -> str:
        rule = self.rule
        seen = f"{rule.counter} grew by {self.after - self.before} ({self.before} to {self.after})"
        limit = f"more than {rule.threshold} in {rule.window_s} s"
        return f"{seen} in {self.span_ns / NS_PER_S:.1f} s, {limit}: {rule.meaning}"


def load_rules() -> tuple[CounterRule, ...]:
    """Return the rules that the package carries."""
    text = (files("collector") / "data/rdma_rules.toml").read_text()
    return tuple(CounterRule(**rule) for rule in tomllib.loads(text)["rule"])


class RuleWatch:
    """Follows one counter of one port for one rule, and tells a rise once: again only after it has calmed down.

    A counter that falls was reset or has wrapped, and a clock that goes back says nothing about speed: both begin
    anew and tell nothing. After a pause longer than the window the mean over the pause counts.
    """

    def __init__(self, rule: CounterRule) -> None:
        self._rule = rule
        self._samples: deque[tuple[int, int]] = deque()  # (ns, value), the oldest about a window old
        self._newest = (0, 0)
        self._is_rising = False

    def observe(self, now_ns: int, value: int) -> Rise | None:
        """Take a reading; return the rise that begins with it, if one does."""
        if not self._samples or value < self._newest[1] or now_ns < self._newest[0]:
            self._begin(now_ns, value)
            return None
        self._remember(now_ns, value)
        begin_ns, before = self._samples[0]
        rise = Rise(self._rule, before, value, now_ns - begin_ns)
        was_rising, self._is_rising = self._is_rising, _is_too_fast(rise)
        return rise if self._is_rising and not was_rising else None

    def _begin(self, now_ns: int, value: int) -> None:
        self._samples = deque([(now_ns, value)])
        self._newest = (now_ns, value)
        self._is_rising = False

    def _remember(self, now_ns: int, value: int) -> None:
        self._newest = (now_ns, value)
        if now_ns - self._samples[-1][0] >= self._rule.window_ns // _SAMPLES:
            self._samples.append((now_ns, value))
        # Reads come a little early or late, so the sample to compare with is the last one at least a window old.
        while len(self._samples) > 1 and self._samples[1][0] <= now_ns - self._rule.window_ns:
            self._samples.popleft()


def _is_too_fast(rise: Rise) -> bool:
    window_ns = rise.rule.window_ns
    return (rise.after - rise.before) * window_ns > rise.rule.threshold * max(rise.span_ns, window_ns)
