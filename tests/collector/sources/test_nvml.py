"""The real binding of NVML is asked the right questions, and its refusals are told apart.

There is no GPU where tests run, so that a fake driver stands below nvidia-ml-py, in the place of the C functions.
"""

import sys
from collections.abc import Callable
from typing import Any

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


def test_host_without_the_binding_has_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(NotPresent, match="nvidia-ml-py is not installed"):
        open_nvml()


def test_host_without_the_library_has_no_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

    monkeypatch.setattr(pynvml, "_LoadNvmlLibrary", refuse)
    with pytest.raises(NotPresent, match="Shared Library Not Found"):
        open_nvml()


def test_host_without_a_loaded_driver_has_no_nvml(driver: FakeDriver) -> None:
    driver.refuses("nvmlInitWithFlags", pynvml.NVML_ERROR_DRIVER_NOT_LOADED)
    with pytest.raises(NotPresent, match="Driver Not Loaded"):
        open_nvml()


def test_driver_and_library_that_do_not_fit_are_an_error_and_not_absence(driver: FakeDriver) -> None:
    driver.refuses("nvmlInitWithFlags", pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH)
    with pytest.raises(OSError, match=r"NVML does not start: .*mismatch"):
        open_nvml()


def test_readings_are_taken_from_the_functions_that_give_them(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    driver.gives("nvmlDeviceGetClockInfo", 1_980)
    driver.gives("nvmlDeviceGetTemperature", 41)  # a driver that does not know nvmlDeviceGetTemperatureV
    driver.gives("nvmlDeviceGetPowerUsage", 312_500)
    driver.gives("nvmlDeviceGetCurrentClocksThrottleReasons", 0x4)
    driver.gives("nvmlDeviceGetPcieReplayCounter", 6)
    driver.gives("nvmlDeviceGetRemappedRows", 1, 2, 1, 0)
    assert nvml.measure(0) == {
        "sm_mhz": 1_980,
        "temp_c": 41,
        "power_mw": 312_500,
        "throttle_bits": 0x4,
        "pcie_replays": 6,
        "rows_corrected": 1,
        "rows_uncorrected": 2,
        "rows_pending": 1,
        "rows_failed": 0,
    }


def test_corrected_and_uncorrected_errors_since_the_driver_was_loaded_are_distinguished(
    driver: FakeDriver, nvml: NvmlLibrary
) -> None:
    def count(_: object, kind: Any, since: Any, reference: Any) -> int:
        reference._obj.value = 100 * (kind.value + 1) + since.value
        return int(pynvml.NVML_SUCCESS)

    driver.functions["nvmlDeviceGetTotalEccErrors"] = count
    assert nvml.measure(0) == {"ecc_corrected": 100, "ecc_uncorrected": 200}


def test_utilisation_is_that_of_the_gpu_and_not_of_its_memory(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    def utilisation(_: object, reference: Any) -> int:
        reference._obj.gpu, reference._obj.memory = 97, 12
        return int(pynvml.NVML_SUCCESS)

    driver.functions["nvmlDeviceGetUtilizationRates"] = utilisation
    assert nvml.measure(0) == {"util_percent": 97}


def test_newer_question_about_the_temperature_is_preferred(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    def temperature(_: object, reference: Any) -> int:
        reference._obj.temperature = 55
        return int(pynvml.NVML_SUCCESS)

    driver.functions["nvmlDeviceGetTemperatureV"] = temperature
    driver.gives("nvmlDeviceGetTemperature", 41)
    assert nvml.measure(0) == {"temp_c": 55}


def test_nvlink_errors_are_the_totals_of_all_kinds(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    replay = pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
    crc = pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
    driver.gives_fields({(replay, 0): ("uiVal", 3), (crc, 0): ("ullVal", 2**40)})
    assert nvml.measure(0) == {"nvlink_errors": 2**40 + 3}


def test_nvlink_errors_of_each_link_are_added_where_there_are_no_totals(
    driver: FakeDriver, nvml: NvmlLibrary
) -> None:
    errors = pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS
    driver.gives_fields({(errors, 0): ("ullVal", 1), (errors, 17): ("ullVal", 20)})
    assert nvml.measure(0) == {"nvlink_errors": 21}


def test_gpu_without_nvlink_has_unknown_errors_and_not_zero(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    driver.gives_fields({})
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    assert nvml.measure(0) == {"power_mw": 1}


def test_readings_that_a_gpu_does_not_support_are_no_news(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    with capture_logs() as lines:
        nvml.measure(0)
    assert lines == []


def test_reading_that_fails_otherwise_is_left_out_and_reported_once(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    driver.refuses("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_UNKNOWN)
    with capture_logs() as lines:
        assert nvml.measure(0) == nvml.measure(0) == {"power_mw": 1}
    assert [(line["gpu"], line["reading"], line["error"]) for line in lines] == [(0, "sm_mhz", "Unknown Error")]


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetUUID", "nvmlDeviceGetClockInfo"])
def test_gpu_that_fell_off_the_bus_is_lost_wherever_it_shows(
    driver: FakeDriver, nvml: NvmlLibrary, function: str
) -> None:
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    driver.refuses(function, pynvml.NVML_ERROR_GPU_IS_LOST)
    with pytest.raises(NotPresent, match="GPU is lost"):
        (nvml.identify(0), nvml.measure(0))


def test_gpu_that_answers_nothing_is_lost(nvml: NvmlLibrary) -> None:
    with pytest.raises(NotPresent, match="no reading at all"):
        nvml.measure(0)


def test_driver_that_is_unloaded_is_not_present_and_can_be_closed(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    for function in ("nvmlDeviceGetCount_v2", "nvmlShutdown"):
        driver.refuses(function, pynvml.NVML_ERROR_UNINITIALIZED)
    with pytest.raises(NotPresent, match="does not answer any more"):
        nvml.count_gpus()
    nvml.close()


def test_gpu_is_identified_as_far_as_it_says(driver: FakeDriver, nvml: NvmlLibrary) -> None:
    assert str(nvml.identify(0)) == "GPU-1, serial unknown, PCI unknown"

    def pci(_: object, reference: Any) -> int:
        reference._obj.busId = b"00000000:1B:00.0"
        return int(pynvml.NVML_SUCCESS)

    driver.functions["nvmlDeviceGetPciInfo_v3"] = pci
    driver.functions["nvmlDeviceGetSerial"] = lambda _, text, __: _write(text, b"1650")
    assert str(nvml.identify(0)) == "GPU-1, serial 1650, PCI 00000000:1B:00.0"


def test_source_reads_through_the_binding(driver: FakeDriver) -> None:
    driver.gives("nvmlDeviceGetPowerUsage", 300_000)
    reading = GpuSource("h0").read(T0, ())
    assert [(row["gpu_uuid"], row["power_w"]) for row in reading.tables["gpu_health"].to_pylist()] == [
        ("GPU-1", 300.0)
    ]
