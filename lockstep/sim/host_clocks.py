"""The clocks of simulated hosts: how far each is off, how fast it runs away, and what the host knows of that."""

import numpy as np
import pyarrow as pa

from lockstep.arrow import fill_rows
from lockstep.clock import NS_PER_S
from lockstep.sim.network import Floats, Ints
from lockstep.sim.story import Story
from lockstep.tables import TABLE_BY_NAME

_TRUTH, _KNOWLEDGE = 0xC10C, 0xC10D  # keep these draws apart from all others of the same seed


def host_clocks(story: Story, seed: int) -> tuple[Ints, Floats]:
    """Return how many nanoseconds each host's clock is ahead when the story begins, and by how much it drifts.

    Spares have clocks too. A drift of 1e-6 gains a microsecond a second.
    """
    random, hosts = np.random.default_rng([seed, _TRUTH]), story.cluster.all_hosts
    offset_ns = np.rint(random.uniform(-1.0, 1.0, hosts) * story.clocks.skew_ms * 1e6).astype(np.int64)
    return offset_ns, random.uniform(-1.0, 1.0, hosts) * story.clocks.drift_ppm * 1e-6


class ClockReadings:
    """What each host tells about its own clock: the truth, rounded by less than the bound that it gives."""

    def __init__(self, story: Story, seed: int, hosts: pa.Array) -> None:
        self._seed, self._hosts = seed, hosts
        self._offset_ns, self._drift = host_clocks(story, seed)
        self._error_ns = round(story.clocks.known_to_us * 1e3)

    def rows(self, second: int, ts_ns: int) -> pa.Table:
        random = np.random.default_rng([self._seed, _KNOWLEDGE, second])
        error_ns = random.integers(-self._error_ns, self._error_ns, len(self._hosts), endpoint=True)
        truth_ns = self._offset_ns + np.rint(self._drift * second * NS_PER_S).astype(np.int64)
        return fill_rows(
            TABLE_BY_NAME["clocks"],
            len(self._hosts),
            {
                "host": self._hosts,
                "ts_ns": ts_ns,
                "offset_ns": truth_ns + error_ns,
                "error_ns": self._error_ns,
                "source": "ntp",
            },
        )
