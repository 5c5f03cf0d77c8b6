"""How long loading or converting a checkpoint takes: its bytes over the rate of its source, seen or given."""

from collections.abc import Sequence
from statistics import median
from typing import Literal

from pydantic import Field

from lockstep.verdict import Frozen
from planner.recovery.checkpoints.checkpoint import Checkpoint, Source

# Extracting reads the shards and writes slices; merging reads the slices and writes the parameters.
_CONVERT_PASSES = 4
# DeepSpeed 0.19.8 on two loaded cores, nearly all of it imports: 3.1 to 8.6 s for a checkpoint of 15 kB.
_CONVERT_START_S = 8.6


class Load(Frozen):
    """A load that happened: the bytes of the whole checkpoint, and the seconds until all ranks had their part."""

    source: Source
    bytes: int = Field(gt=0)
    seconds: float = Field(gt=0)


class ReadRate(Frozen):
    """How fast a whole job reads from a source."""

    source: Source
    bytes_per_s: float = Field(gt=0)
    how: Literal["seen", "given"]
    loads: int = Field(0, ge=0, description="how many loads it was seen in")


def find_rate(source: Source, loads: Sequence[Load], given: ReadRate | None = None) -> ReadRate | None:
    """Return the median rate of the loads from a source, else the given one, else None."""
    rates = [load.bytes / load.seconds for load in loads if load.source == source]
    if not rates:
        return given
    return ReadRate(source=source, bytes_per_s=median(rates), how="seen", loads=len(rates))


def estimate_load_s(checkpoint: Checkpoint, rates: Sequence[ReadRate]) -> float | None:
    """Return the seconds that loading takes, or None where no rate is known for its source."""
    return next((checkpoint.bytes / rate.bytes_per_s for rate in rates if rate.source == checkpoint.source), None)


def estimate_convert_s(checkpoint: Checkpoint, rates: Sequence[ReadRate]) -> float | None:
    """Return the seconds that DeepSpeed's converter takes, if it writes as fast as it reads; None: rate unknown."""
    load_s = estimate_load_s(checkpoint, rates)
    return None if load_s is None else _CONVERT_START_S + _CONVERT_PASSES * load_s
