"""NVML as the source `gpu` asks it; the only module that touches nvidia-ml-py."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal

import structlog

from lockstep.errors import NotPresent

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
