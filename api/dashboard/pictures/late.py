"""Who arrives late, in figures: the strip of arrivals for whoever cannot see it."""

from dataclasses import dataclass

import numpy as np

from api.reading.lags import Lags


@dataclass(frozen=True, slots=True)
class Late:
    """One rank and how late it came."""

    rank: int
    host: str
    gpu: int | None
    median_ms: float
    most_ms: float
    over_others_ms: float  # its median over the median of all ranks


def find_latest(lags: Lags, most: int) -> list[Late]:
    """Return the ranks that came latest on the median, the latest first; those of which nothing is known are not."""
    table = np.array(lags.lag_ms, dtype=float)
    known = [row for row in range(len(table)) if np.isfinite(table[row]).any()]
    if not known:
        return []
    medians = np.nanmedian(table[known], axis=1)
    usual = float(np.median(medians))
    latest = np.argsort(-medians, kind="stable")[:most].tolist()
    return [
        Late(
            rank=lags.ranks[known[at]].rank,
            host=lags.ranks[known[at]].host,
            gpu=lags.ranks[known[at]].gpu,
            median_ms=float(medians[at]),
            most_ms=float(np.nanmax(table[known[at]])),
            over_others_ms=float(medians[at]) - usual,
        )
        for at in latest
    ]
