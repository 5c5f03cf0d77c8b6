"""Token buckets: how many requests a caller has left now; as many callers as fit are remembered, the latest ones."""

from collections import OrderedDict
from dataclasses import dataclass

from lockstep.clock import NS_PER_S

MOST_CALLERS = (
    20_000  # a cluster's hosts and their readers; whoever was silent longest is forgotten, with a full bucket
)
BURST_S = 2.0  # a caller may spend this much time's worth at once: a page asks for twenty things


@dataclass(slots=True)
class _Bucket:
    left: float
    at_ns: int


class Buckets:
    """One bucket a caller, filled at the same rate; for one event loop, which needs no lock."""

    def __init__(self, per_s: float, burst_s: float = BURST_S, most: int = MOST_CALLERS) -> None:
        self._per_s, self._size, self._most = per_s, max(1.0, per_s * burst_s), most
        self._by_caller: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, caller: str, now_ns: int) -> float:
        """Take one; return 0, or after how many seconds there will be one to take. A rate of 0 has no limit.

        >>> bucket = Buckets(per_s=1, burst_s=1)
        >>> bucket.take("h0", 0), bucket.take("h0", 0), bucket.take("h0", 10**9)
        (0.0, 1.0, 0.0)
        """
        if not self._per_s:
            return 0.0
        bucket = self._filled(caller, now_ns)
        if bucket.left < 1:
            return (1 - bucket.left) / self._per_s
        bucket.left -= 1
        return 0.0

    def is_empty(self, caller: str, now_ns: int) -> bool:
        """Return whether the caller has nothing left, without taking any."""
        return bool(self._per_s) and caller in self._by_caller and self._filled(caller, now_ns).left < 1

    def __contains__(self, caller: str) -> bool:
        return caller in self._by_caller

    def __len__(self) -> int:
        return len(self._by_caller)

    def _filled(self, caller: str, now_ns: int) -> _Bucket:
        bucket = self._by_caller.get(caller)
        if bucket is None:
            bucket = self._by_caller[caller] = _Bucket(self._size, now_ns)
            if len(self._by_caller) > self._most:
                self._by_caller.popitem(last=False)
        self._by_caller.move_to_end(caller)
        passed_s = max(0, now_ns - bucket.at_ns) / NS_PER_S
        bucket.left, bucket.at_ns = min(self._size, bucket.left + passed_s * self._per_s), now_ns
        return bucket
