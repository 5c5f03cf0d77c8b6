"""GPU health through NVML: clocks, heat, power, errors; and which part each GPU is.

ECC errors are counted since the driver was loaded. The serial number, the PCI address and the state of remapped
memory rows have no column; they come as events (`gpu_seen`, `row_remapped`, `row_remap_pending`, `row_remap_failed`).
No other module touches nvidia-ml-py.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from collector.sources.source import EventReporter, PlainSource, Reading, tables_of
from lockstep.batches import DetailRequest
from lockstep.errors import NotPresent
from lockstep.records import Event, GpuHealth

_log = structlog.get_logger("gpu")

Quantity = Literal[
    "sm_mhz",
    "temp_c",
    "power_mw",
    "throttle_bits",
    "ecc_corrected",
    "ecc_uncorrected",
    "nvlink_errors",
    "pcie_replays",
    "util_percent",
    "rows_corrected",  # memory rows remapped after correctable errors
    "rows_uncorrected",  # memory rows remapped after uncorrectable errors
    "rows_pending",  # 1 while a remapping waits for a reset
    "rows_failed",  # 1 after a remapping that failed
]
Readings = Mapping[Quantity, int]  # what a GPU does not report is not in it


@dataclass(frozen=True)
class GpuIdentity:
    """The names under which a GPU is found again after a reset, in another slot, or in a vendor's ticket."""

    uuid: str
    serial: str | None
    pci: str | None

    def __str__(self) -> str:
        return f"{self.uuid}, serial {self.serial or 'unknown'}, PCI {self.pci or 'unknown'}"


# What NVML answers about a GPU that is out of reach, and about a reading that a GPU, driver or user does not have.
_LOST = (
    "NVML_ERROR_UNINITIALIZED",
    "NVML_ERROR_DRIVER_NOT_LOADED",
    "NVML_ERROR_IRQ_ISSUE",
    "NVML_ERROR_GPU_IS_LOST",
    "NVML_ERROR_RESET_REQUIRED",
    "NVML_ERROR_GPU_NOT_FOUND",
)
_UNSUPPORTED = (
    "NVML_ERROR_NOT_SUPPORTED",
    "NVML_ERROR_NO_PERMISSION",
    "NVML_ERROR_NOT_FOUND",
    "NVML_ERROR_FUNCTION_NOT_FOUND",
    "NVML_ERROR_NO_DATA",
    "NVML_ERROR_VGPU_ECC_NOT_SUPPORTED",
    "NVML_ERROR_DEPRECATED",
    "NVML_ERROR_INVALID_ARGUMENT",
    "NVML_ERROR_ARGUMENT_VERSION_MISMATCH",
)
_VALUE_MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")  # by NVML_VALUE_TYPE_*
_MAX_NVLINKS = 18  # of one GPU, Hopper and Blackwell
_Pynvml = Any  # the module is shipped without types
_Device = Any  # its handle of a GPU likewise


def open_nvml() -> "NvmlLibrary":
    """Return NVML, ready; raise NotPresent without binding, library or driver, and OSError when it fails to start."""
    try:
        import pynvml  # type: ignore[import-untyped]  # here, because hosts without a GPU need not have it
    except ImportError as error:
        raise NotPresent(f"nvidia-ml-py is not installed: {error}") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        absent = (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
        if error.value in absent:
            raise NotPresent(f"NVML: {error}") from error
        raise OSError(f"NVML does not start: {error}") from error
    return NvmlLibrary(pynvml)


class NvmlLibrary:
    """Asks NVML about GPUs by index. A GPU that cannot be read at all raises NotPresent with NVML's words."""

    def __init__(self, pynvml: _Pynvml) -> None:
        self._nvml = pynvml
        self._reported: set[tuple[int, Quantity]] = set()
        self._lost = frozenset(getattr(pynvml, name) for name in _LOST)
        self._unsupported = frozenset(getattr(pynvml, name) for name in _UNSUPPORTED)

    def close(self) -> None:
        with suppress(self._nvml.NVMLError):  # the driver may be gone
            self._nvml.nvmlShutdown()

    def count_gpus(self) -> int:
        """Return how many GPUs NVML lists; raise NotPresent when it does not answer any more."""
        try:
            return int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise NotPresent(f"NVML does not answer any more: {error}") from error

    def identify(self, gpu: int) -> GpuIdentity:
        """Return the names of a GPU; raise NotPresent when it is lost."""
        device = self._device(gpu)
        try:
            uuid = str(self._nvml.nvmlDeviceGetUUID(device))
        except self._nvml.NVMLError as error:
            raise NotPresent(f"NVML: {error}") from error
        nvml = self._nvml
        serial = self._try_text(lambda: nvml.nvmlDeviceGetSerial(device))
        return GpuIdentity(uuid, serial, self._try_text(lambda: nvml.nvmlDeviceGetPciInfo(device).busId))

    def measure(self, gpu: int) -> Readings:
        """Return what a GPU reports, without what it does not support; raise NotPresent when it is lost."""
        device, readings = self._device(gpu), dict[Quantity, int]()
        for quantities, ask in _QUESTIONS:
            try:
                readings.update(zip(quantities, ask(self._nvml, device), strict=True))
            except self._nvml.NVMLError as error:
                self._note_failure(gpu, quantities[0], error)
        if not readings:
            raise NotPresent("NVML gives no reading at all")
        return readings

    def _device(self, gpu: int) -> _Device:
        try:
            return self._nvml.nvmlDeviceGetHandleByIndex(gpu)
        except self._nvml.NVMLError as error:
            raise NotPresent(f"NVML: {error}") from error

    def _try_text(self, ask: Callable[[], str | bytes]) -> str | None:
        try:
            text = ask()
            return text.decode() if isinstance(text, bytes) else str(text)
        except (self._nvml.NVMLError, UnicodeDecodeError):  # gaming GPUs have no serial, and not all text is text
            return None

    def _note_failure(self, gpu: int, quantity: Quantity, error: Any) -> None:  # Any: an exception without types
        """Raise NotPresent for a GPU that is lost; log what is neither that nor a missing feature, once."""
        if error.value in self._lost:
            raise NotPresent(f"NVML: {error}") from error
        if error.value not in self._unsupported and (gpu, quantity) not in self._reported:
            self._reported.add((gpu, quantity))
            _log.warning("GPU reading failed and is left out", gpu=gpu, reading=quantity, error=str(error))


def _read_temperature(nvml: _Pynvml, device: _Device) -> int:
    try:
        return int(nvml.nvmlDeviceGetTemperatureV(device, nvml.NVML_TEMPERATURE_GPU))
    except (nvml.NVMLError_FunctionNotFound, nvml.NVMLError_NotSupported):  # drivers before R560
        return int(nvml.nvmlDeviceGetTemperature(device, nvml.NVML_TEMPERATURE_GPU))


def _read_ecc(nvml: _Pynvml, device: _Device, kind: int) -> int:
    """Return errors since the driver was loaded: an old error of the part's life says nothing about today."""
    return int(nvml.nvmlDeviceGetTotalEccErrors(device, kind, nvml.NVML_VOLATILE_ECC))


def _read_nvlink_errors(nvml: _Pynvml, device: _Device) -> int:
    """Return CRC errors, replays and recoveries of all links; NVLink 5 counts other things, and each link apart."""
    names = ("CRC_FLIT", "CRC_DATA", "REPLAY", "RECOVERY")
    totals = [getattr(nvml, f"NVML_FI_DEV_NVLINK_{name}_ERROR_COUNT_TOTAL") for name in names]
    found = _read_fields(nvml, device, totals)
    if not found:
        names = ("MALFORMED_PACKET_ERRORS", "BUFFER_OVERRUN_ERRORS", "RCV_ERRORS", "LOCAL_LINK_INTEGRITY_ERRORS")
        fields = [getattr(nvml, f"NVML_FI_DEV_NVLINK_COUNT_{name}") for name in names]
        found = _read_fields(nvml, device, [(field, link) for link in range(_MAX_NVLINKS) for field in fields])
    if not found:
        raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
    return sum(found)


def _read_fields(nvml: _Pynvml, device: _Device, fields: Iterable[int | tuple[int, int]]) -> list[int]:
    """Return the fields that the GPU has; a pair is a field and the link it is asked of."""
    values = nvml.nvmlDeviceGetFieldValues(device, list(fields))
    found = [value for value in values if value.nvmlReturn == nvml.NVML_SUCCESS]
    return [int(getattr(value.value, _VALUE_MEMBERS[value.valueType])) for value in found]


_Question = tuple[tuple[Quantity, ...], Callable[[_Pynvml, _Device], tuple[int, ...]]]
_QUESTIONS: tuple[_Question, ...] = (
    (("sm_mhz",), lambda nvml, device: (nvml.nvmlDeviceGetClockInfo(device, nvml.NVML_CLOCK_SM),)),
    (("temp_c",), lambda nvml, device: (_read_temperature(nvml, device),)),
    (("power_mw",), lambda nvml, device: (nvml.nvmlDeviceGetPowerUsage(device),)),
    # The older name of the reasons for clock events, which every driver has.
    (("throttle_bits",), lambda nvml, device: (nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device),)),
    (("ecc_corrected",), lambda nvml, device: (_read_ecc(nvml, device, nvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),)),
    (("ecc_uncorrected",), lambda nvml, device: (_read_ecc(nvml, device, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),)),
    (("nvlink_errors",), lambda nvml, device: (_read_nvlink_errors(nvml, device),)),
    (("pcie_replays",), lambda nvml, device: (nvml.nvmlDeviceGetPcieReplayCounter(device),)),
    (("util_percent",), lambda nvml, device: (nvml.nvmlDeviceGetUtilizationRates(device).gpu,)),
    (
        ("rows_corrected", "rows_uncorrected", "rows_pending", "rows_failed"),
        lambda nvml, device: nvml.nvmlDeviceGetRemappedRows(device),
    ),
)


# Bits of nvmlDeviceGetCurrentClocksEventReasons, from nvml.h of CUDA 13.
_THROTTLE_WORDS = (
    *("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown", "sync_boost", "sw_thermal_slowdown"),
    *("hw_thermal_slowdown", "hw_power_brake_slowdown", "display_clock_setting", "board_limit", "reliability"),
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
