"""The real binding of NVML asks the right questions; without a GPU a fake stands in the place of its C functions."""

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pynvml  # type: ignore[import-untyped]  # shipped without types
import pytest
from structlog.testing import capture_logs

from collector.sources.gpu import GpuSource
from collector.sources.nvml import NvmlLibrary, open_nvml
from lockstep.errors import NotPresent
from tests.builders import T0

NOT_SUPPORTED = pynvml.NVML_ERROR_NOT_SUPPORTED


class FakeDriver:
    """The C functions of NVML, one GPU; a function that a test did not define answers that it is not supported."""

    def __init__(self) -> None:
        self.functions: dict[str, Callable[..., int]] = {}
        for name in ("nvmlInitWithFlags", "nvmlDeviceGetHandleByIndex_v2", "nvmlShutdown"):
            self.functions[name] = lambda *_: pynvml.NVML_SUCCESS
        self.gives("nvmlDeviceGetCount_v2", 1)
        self.functions["nvmlDeviceGetUUID"] = lambda _, text, __: _write(text, b"GPU-1")

    def gives(self, name: str, *values: int) -> None:
        """Let a function write values to its last arguments, as C does."""

        def function(*arguments: Any) -> int:
            for reference, value in zip(arguments[-len(values) :], values, strict=True):
                reference._obj.value = value
            return int(pynvml.NVML_SUCCESS)

        self.functions[name] = function

    def refuses(self, name: str, error: int) -> None:
        self.functions[name] = lambda *_: error

    def gives_fields(self, fields: dict[tuple[int, int], tuple[str, int]]) -> None:
        """Let the GPU have these (field, link), each with the member of the value that is written."""

        def function(_: object, __: object, reference: Any) -> int:
            for value in reference._obj:
                member, count = fields.get((value.fieldId, value.scopeId), ("", 0))
                value.nvmlReturn = pynvml.NVML_SUCCESS if member else NOT_SUPPORTED
                if member:
                    value.value.ullVal = 2**64 - 1  # what is not written is not to be trusted
                    value.valueType = {"uiVal": 1, "ullVal": 3}[member]
                    setattr(value.value, member, count)
            return int(pynvml.NVML_SUCCESS)

        self.functions["nvmlDeviceGetFieldValues"] = function

    def find(self, name: str) -> Callable[..., int]:
        return self.functions.get(name, lambda *_: NOT_SUPPORTED)


def _write(buffer: Any, text: bytes) -> int:
    buffer.value = text
    return int(pynvml.NVML_SUCCESS)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> FakeDriver:
    fake = FakeDriver()
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", lambda: None)
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer", fake.find)
    monkeypatch.setattr(pynvml, "_nvmlLib_refcount", 0)
    return fake


@pytest.fixture
def nvml(driver: FakeDriver) -> NvmlLibrary:
    return open_nvml()


def test_host_without_binding_library_or_driver_has_no_nvml_and_one_that_does_not_fit_is_an_error(
    driver: FakeDriver, monkeypatch: pytest.MonkeyPatch
) -> None:

    driver.refuses("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(OSError, match=r"NVML does not start: .*mismatch"):
        open_nvml()
    driver.refuses("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(NotPresent, match="Driver Not Loaded"):
        open_nvml()
    missing = pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)
    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", Mock(side_effect=missing))
    with pytest.raises(NotPresent, match="Shared Library Not Found"):
        open_nvml()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NotPresent, match="nvidia-ml-py is not installed"):
        open_nvml()


def writes(**fields: int | bytes) -> Callable[[object, Any], int]:
    """Return a function that writes these members of the struct that it is given."""

    def function(_: object, reference: Any) -> int:
        for name, value in fields.items():
            setattr(reference._obj, name, value)
        return int(pynvml.NVML_SUCCESS)

    return function


def test_readings_are_taken_from_the_functions_that_give_them(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    def count(_: object, kind: Any, since: Any, reference: Any) -> int:
        reference._obj.value = 100 * (kind.value + 1) + since.value
        return int(pynvml.NVML_SUCCESS)

    driver.gives("nvmlDeviceGetClockInfo", 1_980)
    driver.gives("nvmlDeviceGetTemperature", 41)  # a driver that does not know nvmlDeviceGetTemperatureV
    driver.gives("nvmlDeviceGetPowerUsage", 312_500)
    driver.gives("nvmlDeviceGetCurrentClocksThrottleReasons", 0x4)
    driver.gives("nvmlDeviceGetPcieReplayCounter", 6)
    driver.gives("nvmlDeviceGetRemappedRows", 1, 2, 1, 0)
    driver.functions["nvmlDeviceGetTotalEccErrors"] = count
    driver.functions["nvmlDeviceGetUtilizationRates"] = writes(gpu=97, memory=12)
    expected = {"sm_mhz": 1_980, "temp_c": 41, "power_mw": 312_500, "throttle_bits": 0x4, "pcie_replays": 6}
    expected |= {"rows_corrected": 1, "rows_uncorrected": 2, "rows_pending": 1, "rows_failed": 0}
    expected |= {"ecc_corrected": 100, "ecc_uncorrected": 200, "util_percent": 97}
    assert nvml.measure(0) == expected
    driver.functions["nvmlDeviceGetTemperatureV"] = writes(temperature=55)
    assert nvml.measure(0) == expected | {"temp_c": 55}, "the newer question is preferred"


REPLAY = pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
CRC = pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
OF_LINK = pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS


@pytest.mark.parametrize(
    ("fields", "errors"),
    [
        ({(REPLAY, 0): ("uiVal", 3), (CRC, 0): ("ullVal", 2**40)}, {"nvlink_errors": 2**40 + 3}),
        ({(OF_LINK, 0): ("ullVal", 1), (OF_LINK, 17): ("ullVal", 20)}, {"nvlink_errors": 21}),
        ({}, {}),
    ],
    ids=["totals", "of each link", "no NVLink"],
)
def test_nvlink_errors_are_added_and_what_a_gpu_does_not_support_is_unknown_and_no_news(
    driver: FakeDriver, nvml: NvmlLibrary, fields: dict[tuple[int, int], tuple[str, int]], errors: dict[str, int]
) -> None:
    driver.gives_fields(fields)
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    with capture_logs() as lines:
        assert nvml.measure(0) == {"power_mw": 1} | errors
    assert lines == []


def test_reading_that_fails_otherwise_is_left_out_and_reported_once(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    driver.refuses("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_UNKNOWN)
    with capture_logs() as lines:
        assert nvml.measure(0) == nvml.measure(0) == {"power_mw": 1}
    assert [(line["gpu"], line["reading"], line["error"]) for line in lines] == [(0, "sm_mhz", "Unknown Error")]


def test_gpu_that_fell_off_the_bus_is_lost_wherever_it_shows_and_an_unloaded_driver_can_be_closed(
    driver: FakeDriver, nvml: NvmlLibrary
) -> None:
    with pytest.raises(NotPresent, match="no reading at all"):
        nvml.measure(0)
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    for function in ("nvmlDeviceGetClockInfo", "nvmlDeviceGetUUID", "nvmlDeviceGetHandleByIndex_v2"):
        whole = dict(driver.functions)
        driver.refuses(function, pynvml.NVML_ERROR_GPU_IS_LOST)
        with pytest.raises(NotPresent, match="GPU is lost"):
            (nvml.identify(0), nvml.measure(0))
        driver.functions = whole
    for function in ("nvmlDeviceGetCount_v2", "nvmlShutdown"):
        driver.refuses(function, pynvml.NVML_ERROR_UNINITIALIZED)
    with pytest.raises(NotPresent, match="does not answer any more"):
        nvml.count_gpus()
    nvml.close()


def test_gpu_is_identified_as_far_as_it_says_and_the_source_reads_through_the_binding(
    driver: FakeDriver, nvml: NvmlLibrary
) -> None:
    assert str(nvml.identify(0)) == "GPU-1, serial unknown, PCI unknown"

    driver.functions["nvmlDeviceGetPciInfo_v3"] = writes(busId=b"00000000:1B:00.0")
    driver.functions["nvmlDeviceGetSerial"] = lambda _, text, __: _write(text, b"1650")
    assert str(nvml.identify(0)) == "GPU-1, serial 1650, PCI 00000000:1B:00.0"
    driver.gives("nvmlDeviceGetPowerUsage", 300_000)
    (row,) = GpuSource("h0").read(T0, ()).tables["gpu_health"].to_pylist()
    assert (row["gpu_uuid"], row["power_w"]) == ("GPU-1", 300.0)
