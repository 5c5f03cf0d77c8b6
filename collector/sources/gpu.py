"""GPU health through NVML: clocks, heat, power, errors; and which part each GPU is.

ECC errors are counted since the driver was loaded. The serial number, the PCI address and the state of remapped
memory rows have no column; they come as events (`gpu_seen`, `row_remapped`, `row_remap_pending`, `row_remap_failed`).
"""

from collections.abc import Callable, Sequence

from collector.sources.nvml import GpuIdentity, NvmlLibrary, Readings, open_nvml
from collector.sources.source import EventReporter, PlainSource, Reading, tables_of
from lockstep.batches import DetailRequest
from lockstep.errors import NotPresent
from lockstep.records import Event, GpuHealth

# Bits of nvmlDeviceGetCurrentClocksEventReasons, from nvml.h of CUDA 13.
_THROTTLE_WORDS = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)


def health_row(host: str, now_ns: int, gpu: int, identity: GpuIdentity, readings: Readings) -> GpuHealth:
    """Return a reading as a row; what the GPU does not report is unknown."""
    temp_c, power_mw, util_percent = (readings.get(name) for name in ("temp_c", "power_mw", "util_percent"))
    return GpuHealth(
        host=host,
        ts_ns=now_ns,
        gpu=gpu,
        gpu_uuid=identity.uuid,
        sm_mhz=readings.get("sm_mhz"),
        temp_c=float(temp_c) if temp_c is not None else None,
        power_w=power_mw / 1000 if power_mw is not None else None,
        throttle=throttle_words(readings.get("throttle_bits", 0)),
        ecc_sbe=readings.get("ecc_corrected"),
        ecc_dbe=readings.get("ecc_uncorrected"),
        nvlink_errors=readings.get("nvlink_errors"),
        pcie_replays=readings.get("pcie_replays"),
        util=util_percent / 100 if util_percent is not None else None,
    )


def throttle_words(bits: int) -> str:
    """Return the reasons for a lowered clock, the lowest bit first; a bit that we do not know is `bit_20`."""
    names = dict(enumerate(_THROTTLE_WORDS))
    return ",".join(names.get(bit, f"bit_{bit}") for bit in range(bits.bit_length()) if bits >> bit & 1)


class GpuWatch:
    """Remembers what one GPU was like and says what changed; standing faults are told when first seen."""

    def __init__(self, host: str, gpu: int) -> None:
        self._gpu = gpu
        self._reporter = EventReporter(host, "gpu", f"gpu:{host}/{gpu}")
        self._identity: GpuIdentity | None = None
        self._is_lost = False
        self._was: Readings = {}

    def observe(self, now_ns: int, identity: GpuIdentity, readings: Readings) -> list[Event]:
        """Take a reading and return what happened since the one before."""
        events = self._presence_events(now_ns, identity) + self._row_events(now_ns, readings)
        self._is_lost, self._identity, self._was = False, identity, {**self._was, **readings}
        return events

    def lose(self, now_ns: int, reason: str) -> list[Event]:
        """Note that the GPU cannot be read; tell it once."""
        was_lost, self._is_lost = self._is_lost, True
        message = f"GPU {self._gpu} ({self._identity or 'never read'}) cannot be read: {reason}"
        return [] if was_lost else [self._reporter.report(now_ns, "gpu_lost", "critical", message)]

    def _presence_events(self, now_ns: int, identity: GpuIdentity) -> list[Event]:
        if identity != self._identity:
            before = f"; before it was {self._identity}" if self._identity else ""
            self._was = {}  # another part, with a history of its own
            return [self._reporter.report(now_ns, "gpu_seen", "info", f"GPU {self._gpu} is {identity}{before}")]
        if self._is_lost:
            return [
                self._reporter.report(now_ns, "gpu_back", "info", f"GPU {self._gpu} ({identity}) can be read again")
            ]
        return []

    def _row_events(self, now_ns: int, readings: Readings) -> list[Event]:
        rows, was = readings.get("rows_uncorrected", 0), self._was
        happened = []
        if rows > was.get("rows_uncorrected", rows):
            message = f"{rows} memory rows are remapped after uncorrectable errors"
            happened.append(("row_remapped", "warning", message))
        if readings.get("rows_pending") and not was.get("rows_pending"):
            message = "memory rows wait to be remapped, which a reset of the GPU does"
            happened.append(("row_remap_pending", "warning", message))
        if readings.get("rows_failed") and not was.get("rows_failed"):
            message = "memory rows could not be remapped: the GPU has no spare ones left or is defective"
            happened.append(("row_remap_failed", "error", message))
        report = self._reporter.report
        return [report(now_ns, kind, severity, f"GPU {self._gpu}: {text}") for kind, severity, text in happened]


class GpuSource(PlainSource):
    """Reads every GPU that NVML lists. One that fails gives one event and leaves the others alone.

    The driver may be reloaded under us: the GPUs are told as lost, and NVML is opened again until it answers.
    """

    name = "gpu"
    period_s = 2.0

    def __init__(self, host: str, open_library: Callable[[], NvmlLibrary] = open_nvml) -> None:
        self._host = host
        self._open = open_library
        self._nvml: NvmlLibrary | None = None
        self._watches: dict[int, GpuWatch] = {}

    def read(self, now_ns: int, requests: Sequence[DetailRequest]) -> Reading:
        try:
            nvml, count = self._connect()
        except (NotPresent, OSError) as error:
            if self._nvml:
                self._nvml.close()
            self._nvml = None
            if not self._watches:
                raise
            return self._reading(now_ns, [], self._lose_from(0, now_ns, str(error)))
        read = [self._try_gpu(nvml, gpu, now_ns) for gpu in range(count)]
        rows = [row for row, _ in read if row]
        events = [event for _, events in read for event in events]
        return self._reading(now_ns, rows, events + self._lose_from(count, now_ns, "NVML does not list it any more"))

    def _connect(self) -> tuple[NvmlLibrary, int]:
        self._nvml = self._nvml or self._open()
        count = self._nvml.count_gpus()
        if not count:
            raise NotPresent("NVML lists no GPU")
        return self._nvml, count

    def _try_gpu(self, nvml: NvmlLibrary, gpu: int, now_ns: int) -> tuple[GpuHealth | None, list[Event]]:
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
        return Reading(tables_of(gpu_health=rows, events=events), watermark_ns=now_ns)
