"""How long loading or converting a checkpoint takes: its bytes over the rate of its source."""

from collections.abc import Sequence

from pydantic import Field

from lockstep.verdict import Frozen
from planner.recovery.checkpoints.checkpoint import Checkpoint, Source

# Extracting reads the shards and writes slices; merging reads the slices and writes the parameters.
_CONVERT_PASSES = 4
# DeepSpeed 0.19.8 on two loaded cores, nearly all of it imports: 3.1 to 8.6 s for a checkpoint of 15 kB.
_CONVERT_START_S = 8.6


class ReadRate(Frozen):
    """How fast a whole job reads from a source."""

    source: Source
    bytes_per_s: float = Field(gt=0)


def estimate_load_s(checkpoint: Checkpoint, rates: Sequence[ReadRate]) -> float | None:
    """Return the seconds that loading takes, or None where no rate is known for its source."""
    return next((checkpoint.bytes / rate.bytes_per_s for rate in rates if rate.source == checkpoint.source), None)


def estimate_convert_s(checkpoint: Checkpoint, rates: Sequence[ReadRate]) -> float | None:
    """Return the seconds that DeepSpeed's converter takes, if it writes as fast as it reads; None: rate unknown."""
    load_s = estimate_load_s(checkpoint, rates)
    return None if load_s is None else _CONVERT_START_S + _CONVERT_PASSES * load_s
