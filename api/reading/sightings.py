"""Where a GPU has been: its UUID survives renumbering, other slots and other hosts."""

from collections.abc import Collection, Iterable

from pydantic import Field

from api.reading.moments import show_moment
from lockstep.store.store import Store
from lockstep.topology import gpu_name
from lockstep.verdict import Frozen

# Jobs tell where they found a GPU, and lie on other shards than its readings: no shard may be left out for a host.
_SIGHTINGS = """
SELECT gpu_uuid, host, gpu, min(sightings.first_ns) AS first_ns, max(sightings.last_ns) AS last_ns
FROM sightings WHERE {condition} GROUP BY gpu_uuid, host, gpu ORDER BY gpu_uuid, first_ns, host, gpu
SETTINGS optimize_skip_unused_shards = 0
"""


class Sighting(Frozen):
    """A GPU at a place, from its first to its last sign there."""

    gpu_uuid: str
    component: str = Field(description="the place, as it is named in verdicts")
    first_ns: int
    last_ns: int
    first_at: str | None = None
    last_at: str | None = None


def sightings_at(store: Store, hosts: Collection[str]) -> list[Sighting]:
    """Return the GPUs that have been in some hosts, by UUID and time."""
    return _read(store, "host IN {wanted:Array(String)}", hosts)


def sightings_of(store: Store, uuids: Collection[str]) -> list[Sighting]:
    """Return where some GPUs have been, by UUID and time."""
    return _read(store, "gpu_uuid IN {wanted:Array(String)}", uuids)


def uuids_at(sightings: Iterable[Sighting], component: str, moment_ns: int) -> set[str]:
    """Return which GPU was at a place at a moment: the one that came there last until then."""
    there = [each for each in sightings if each.component == component and each.first_ns <= moment_ns]
    newest = max(there, key=lambda each: each.first_ns, default=None)
    return {newest.gpu_uuid} if newest else set()


def _read(store: Store, condition: str, wanted: Collection[str]) -> list[Sighting]:
    if not wanted:
        return []
    return [
        Sighting(
            gpu_uuid=row["gpu_uuid"],
            component=gpu_name(row["host"], row["gpu"]),
            first_ns=row["first_ns"],
            last_ns=row["last_ns"],
            first_at=show_moment(row["first_ns"]),
            last_at=show_moment(row["last_ns"]),
        )
        for row in store.query(_SIGHTINGS.format(condition=condition), {"wanted": sorted(wanted)}).to_pylist()
    ]
