"""How the NCCL plugins in the ranks of a host do, together: for metrics, the API and the page of agents."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from pydantic import Field

from lockstep.records import PluginHealth
from lockstep.verdict import Frozen


class PluginSummary(Frozen):
    """The plugins of a host; where one figure stands for all, it is the worst."""

    levels: dict[str, int] = Field(description="processes that record, by what: operations, transfers, steps")
    silent: int = Field(ge=0, description="processes that their launcher started and no plugin reports")
    lowered: int = Field(ge=0, description="processes that record less than asked for, because of what it costs")
    callback_ppm: int = Field(ge=0, description="time in callbacks on the busiest thread, in millionths")
    paid_ppm: int = Field(description="what a job pays by its own pace, in millionths of its time; 0: not measured")
    refused_comms: int = Field(ge=0, description="communicators that are not seen")
    lost_records: int = Field(ge=0, description="records overwritten before they were read")

    @property
    def words(self) -> str:
        """What a cell of a table has room for."""
        costs = f"{max(self.callback_ppm, self.paid_ppm, 0) / 1e4:.2f} %"
        troubles = {"silent": self.silent, "lowered": self.lowered, "communicators unseen": self.refused_comms}
        troubles["records lost"] = self.lost_records
        told = [f"{count} {level}" for level, count in self.levels.items()] + [costs]
        return ", ".join(told + [f"{count} {name}" for name, count in troubles.items() if count])


def summarize_plugins(plugins: Sequence[PluginHealth]) -> PluginSummary:
    """Return how the plugins of one host do; one row for each."""
    return PluginSummary(
        levels=dict(sorted(Counter(each.level for each in plugins).items())),
        silent=_silent_ranks(plugins),
        lowered=sum(each.lowered != "no" for each in plugins),
        callback_ppm=max((each.callback_ppm for each in plugins), default=0),
        paid_ppm=max((each.paid_ppm or 0 for each in plugins), default=0),
        refused_comms=sum(each.refused_comms for each in plugins),
        lost_records=sum(each.lost for each in plugins),
    )


def _silent_ranks(plugins: Sequence[PluginHealth]) -> int:
    """Return how many processes are missing of jobs whose launcher says how many it started."""
    missing = defaultdict[tuple[str, int], int](int)
    for (job, attempt, started), seen in Counter((p.job, p.attempt, p.local_ranks or 0) for p in plugins).items():
        missing[job, attempt] = max(missing[job, attempt], started - seen)
    return sum(missing.values())
