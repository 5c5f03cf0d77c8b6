"""GPU health through NVML: clocks, heat, power, errors; and which part each GPU is.

ECC errors are counted since the driver was loaded. The serial number, the PCI address and the state of remapped
memory rows have no column; they come as events (`gpu_seen`, `row_remapped`, `row_remap_pending`, `row_remap_failed`).
"""

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Protocol

from collector.gpus.nvml import open_nvml
from collector.gpus.readings import GpuIdentity, GpuWatch, Readings, health_row
from collector.source import PlainSource, Reading
from lockstep.arrow import rows_of
from lockstep.errors import NotPresent
from lockstep.records import Event, GpuHealth
from lockstep.tables import TABLE_BY_NAME
from lockstep.wish import Wish


class Nvml(Protocol):
    """What the source asks of NVML; every question raises NotPresent about a GPU, or a driver, that is lost."""

    def count_gpus(self) -> int: ...

    def identify(self, gpu: int) -> GpuIdentity: ...

    def measure(self, gpu: int) -> Readings:
        """Return what the GPU reports, without what it does not support."""
        ...

    def close(self) -> None: ...


class GpuSource(PlainSource):
    """Reads every GPU that NVML lists. One that fails gives one event and leaves the others alone.

    The driver may be reloaded under us: the GPUs are told as lost, and NVML is opened again until it answers.
    """

    name = "gpu"
    period_s = 2.0

    def __init__(self, host: str, open_library: Callable[[], Nvml] = open_nvml) -> None:
        self._host = host
        self._open = open_library
        self._nvml: Nvml | None = None
        self._watches: dict[int, GpuWatch] = {}

    def read(self, now_ns: int, wishes: Sequence[Wish]) -> Reading:
        try:
            nvml, count = self._connect()
        except (NotPresent, OSError) as error:
            self._disconnect()
            if not self._watches:
                raise
            return self._reading(now_ns, [], self._lose_from(0, now_ns, str(error)))
        read = [self._try_gpu(nvml, gpu, now_ns) for gpu in range(count)]
        rows = [row for row, _ in read if row]
        events = list(chain.from_iterable(events for _, events in read))
        return self._reading(now_ns, rows, events + self._lose_from(count, now_ns, "NVML does not list it any more"))

    def _connect(self) -> tuple[Nvml, int]:
        self._nvml = self._nvml or self._open()
        count = self._nvml.count_gpus()
        if not count:
            raise NotPresent("NVML lists no GPU")
        return self._nvml, count

    def _disconnect(self) -> None:
        if self._nvml:
            self._nvml.close()
        self._nvml = None

    def _try_gpu(self, nvml: Nvml, gpu: int, now_ns: int) -> tuple[GpuHealth | None, list[Event]]:
        """Return the row and the events of one GPU; without a row when it is lost."""
        watch = self._watches.setdefault(gpu, GpuWatch(self._host, gpu))
        try:
            identity, readings = nvml.identify(gpu), nvml.measure(gpu)
        except NotPresent as loss:
            return None, watch.lose(now_ns, str(loss))
        return health_row(self._host, now_ns, gpu, identity, readings), watch.observe(now_ns, identity, readings)

    def _lose_from(self, first: int, now_ns: int, reason: str) -> list[Event]:
        """Return the events of all GPUs from an index on, which nobody can read now."""
        lost = [watch for gpu, watch in sorted(self._watches.items()) if gpu >= first]
        return [event for watch in lost for event in watch.lose(now_ns, reason)]

    def _reading(self, now_ns: int, rows: list[GpuHealth], events: list[Event]) -> Reading:
        return Reading(
            {
                "gpu_health": rows_of(TABLE_BY_NAME["gpu_health"], list(rows)),
                "events": rows_of(TABLE_BY_NAME["events"], list(events)),
            },
            watermark_ns=now_ns,
        )
