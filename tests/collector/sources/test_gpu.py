"""GPUs are read through NVML as far as they report themselves; one that fails leaves the others alone."""

import sys
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pynvml  # type: ignore[import-untyped]  # shipped without types
import pytest
from structlog.testing import capture_logs

from collector.sources.gpu import GpuIdentity, GpuSource, NvmlLibrary, Quantity, Readings, open_nvml, throttle_words
from lockstep.errors import NotPresent
from tests.builders import SECOND, T0
from tests.collector.sources.reader import Reader

HEALTHY: dict[Quantity, int] = {"sm_mhz": 1_980, "temp_c": 41, "power_mw": 312_500, "throttle_bits": 0}
HEALTHY |= {"ecc_corrected": 3, "ecc_uncorrected": 0, "nvlink_errors": 2, "pcie_replays": 1, "util_percent": 97}
HEALTHY |= {"rows_corrected": 0, "rows_uncorrected": 1, "rows_pending": 0, "rows_failed": 0}


class FakeNvml(NvmlLibrary):
    """Stands in for NVML where there is no GPU: GPUs that report what a test wants, or are lost for a reason."""

    def __init__(self, count: int = 1) -> None:
        self.gpus: list[dict[Quantity, int]] = [dict(HEALTHY) for _ in range(count)]
        self.lost: dict[int, str] = {}
        self.serials = [f"165{gpu}" for gpu in range(count)]
        self.is_away = False
        self.opened = self.closed = 0

    def open(self) -> "FakeNvml":
        if self.is_away:
            raise NotPresent("Driver Not Loaded")
        self.opened += 1
        return self

    def close(self) -> None:
        self.closed += 1

    def count_gpus(self) -> int:
        if self.is_away:
            raise NotPresent("Uninitialized")
        return len(self.gpus)

    def identify(self, gpu: int) -> GpuIdentity:
        self._check(gpu)
        return GpuIdentity(f"GPU-{gpu}", self.serials[gpu], f"0000:{gpu + 1:02x}:00.0")

    def measure(self, gpu: int) -> Readings:
        self._check(gpu)
        return dict(self.gpus[gpu])

    def _check(self, gpu: int) -> None:
        if gpu in self.lost:
            raise NotPresent(self.lost[gpu])


def host_of(nvml: FakeNvml) -> Reader:
    return Reader(GpuSource("h0", nvml.open))


def test_gpu_is_read_in_full_what_it_does_not_report_is_unknown_and_reasons_for_a_low_clock_are_words() -> None:
    nvml = FakeNvml(3)
    nvml.gpus[1:] = {"sm_mhz": 1_980}, dict.fromkeys(HEALTHY, 0)
    healthy, unknown, zero = host_of(nvml).rows("gpu_health")
    expected = {"host": "h0", "ts_ns": T0 + SECOND, "gpu": 0, "gpu_uuid": "GPU-0", "sm_mhz": 1_980, "temp_c": 41.0}
    expected |= {"power_w": 312.5, "throttle": "", "ecc_sbe": 3, "ecc_dbe": 0, "nvlink_errors": 2}
    assert healthy == expected | {"pcie_replays": 1, "util": 0.97}
    known = {name for name, value in unknown.items() if value is not None}
    assert known == {"host", "ts_ns", "gpu", "gpu_uuid", "sm_mhz", "throttle"}
    assert (zero["temp_c"], zero["power_w"], zero["util"], zero["ecc_sbe"]) == (0.0, 0.0, 0.0, 0)
    words = {0: "", 0x1: "gpu_idle", 0x4 | 0x40: "sw_power_cap,hw_thermal_slowdown"}
    words |= {0x400: "reliability", 0x8 | 1 << 20: "hw_slowdown,bit_20"}
    assert {bits: throttle_words(bits) for bits in words} == words


def test_host_without_nvml_or_gpus_says_why_and_nvml_that_fails_is_an_error() -> None:
    nvml = FakeNvml()
    nvml.is_away = True
    with pytest.raises(NotPresent, match="Driver Not Loaded"):
        host_of(nvml).events()
    with pytest.raises(NotPresent, match="lists no GPU"):
        host_of(FakeNvml(0)).events()
    with pytest.raises(OSError, match="version mismatch"):
        GpuSource("h0", Mock(side_effect=OSError("version mismatch"))).read(T0, ())


def test_gpu_is_introduced_once_and_an_exchanged_one_with_the_one_before() -> None:
    nvml = FakeNvml(2)
    host = host_of(nvml)
    assert host.events() == [
        ("gpu_seen", "gpu:h0/0", "GPU 0 is GPU-0, serial 1650, PCI 0000:01:00.0"),
        ("gpu_seen", "gpu:h0/1", "GPU 1 is GPU-1, serial 1651, PCI 0000:02:00.0"),
    ]
    assert host.events() == []
    nvml.serials[0] = "77"
    ((kind, _, message),) = host.events()
    assert kind == "gpu_seen"
    assert message.startswith("GPU 0 is GPU-0, serial 77, PCI 0000:01:00.0; before it was GPU-0, serial 1650")
    assert (nvml.opened, nvml.closed) == (1, 0)


def test_gpu_that_falls_off_the_bus_or_was_lost_and_comes_back_is_reported_once_each_and_leaves_the_others() -> None:
    nvml = FakeNvml(3)
    host = host_of(nvml)
    host.events()
    nvml.lost[1] = "GPU is lost"
    reported = "GPU 1 (GPU-1, serial 1651, PCI 0000:02:00.0) cannot be read: GPU is lost"
    assert host.events() == [("gpu_lost", "gpu:h0/1", reported)]
    assert host.events() == []
    assert [row["gpu"] for row in host.rows("gpu_health")] == [0, 2]
    nvml.lost.clear()
    assert [host.kinds(), host.kinds()] == [["gpu_back"], []]
    nvml.gpus.pop()
    assert [host.kinds(), host.kinds()] == [["gpu_lost"], []], "it is not listed any more"
    nvml = FakeNvml(2)
    nvml.lost[0] = "Unknown Error"
    host = host_of(nvml)
    lost, _ = host.events()
    assert lost == ("gpu_lost", "gpu:h0/0", "GPU 0 (never read) cannot be read: Unknown Error")
    nvml.lost.clear()
    assert host.kinds() == ["gpu_seen"]
    nvml.is_away = True  # the driver was unloaded
    assert [host.kinds(), host.kinds()] == [["gpu_lost", "gpu_lost"], []]
    nvml.is_away = False
    assert host.kinds() == ["gpu_back", "gpu_back"]
    assert (nvml.opened, nvml.closed) == (2, 1)


def test_pending_row_remapping_is_reported_when_it_begins_and_rows_when_they_are_remapped_or_that_fails() -> None:
    nvml = FakeNvml()
    nvml.gpus[0]["rows_pending"] = 1
    host = host_of(nvml)
    assert host.kinds() == ["gpu_seen", "row_remap_pending"], "also when it was there before us"
    del nvml.gpus[0]["rows_pending"]  # it is not answered once
    reported = [host.kinds()]
    for pending in (1, 1, 0, 1):
        nvml.gpus[0]["rows_pending"] = pending
        reported.append(host.kinds())
    assert reported == [[], [], [], [], ["row_remap_pending"]]
    nvml.gpus[0]["rows_uncorrected"] = 2  # one was before us
    ((kind, _, message),) = host.events()
    assert (kind, message) == ("row_remapped", "GPU 0: 2 memory rows are remapped after uncorrectable errors")
    nvml.gpus[0]["rows_failed"] = 1
    (event,) = host.rows("events")
    assert (event["source"], event["kind"], event["severity"]) == ("gpu", "row_remap_failed", "error")
    nvml.gpus[0] = HEALTHY | {"rows_pending": 1}
    nvml.serials[0] = "77"
    assert host.kinds() == ["gpu_seen", "row_remap_pending"], "that of another GPU"


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

    def writes(self, name: str, **members: int | bytes) -> None:
        """Let a function write these members of the struct that it is given."""

        def function(_: object, reference: Any) -> int:
            for member, value in members.items():
                setattr(reference._obj, member, value)
            return int(pynvml.NVML_SUCCESS)

        self.functions[name] = function

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


def test_readings_and_names_are_taken_from_the_functions_that_give_them(
    driver: FakeDriver, nvml: NvmlLibrary
) -> None:
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
    driver.writes("nvmlDeviceGetUtilizationRates", gpu=97, memory=12)
    expected = {"sm_mhz": 1_980, "temp_c": 41, "power_mw": 312_500, "throttle_bits": 0x4, "pcie_replays": 6}
    expected |= {"rows_corrected": 1, "rows_uncorrected": 2, "rows_pending": 1, "rows_failed": 0}
    expected |= {"ecc_corrected": 100, "ecc_uncorrected": 200, "util_percent": 97}
    assert nvml.measure(0) == expected
    driver.writes("nvmlDeviceGetTemperatureV", temperature=55)
    assert nvml.measure(0) == expected | {"temp_c": 55}, "the newer question is preferred"
    assert str(nvml.identify(0)) == "GPU-1, serial unknown, PCI unknown"
    driver.writes("nvmlDeviceGetPciInfo_v3", busId=b"00000000:1B:00.0")
    driver.functions["nvmlDeviceGetSerial"] = lambda _, text, __: _write(text, b"1650")
    assert str(nvml.identify(0)) == "GPU-1, serial 1650, PCI 00000000:1B:00.0"
    (row,) = GpuSource("h0").read(T0, ()).tables["gpu_health"].to_pylist()
    assert (row["gpu_uuid"], row["power_w"]) == ("GPU-1", 312.5), "the source reads through the binding"


REPLAY = pynvml.NVML_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL
CRC = pynvml.NVML_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL
OF_LINK = pynvml.NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS


def test_nvlink_errors_are_added_what_is_not_supported_is_no_news_and_what_fails_otherwise_is_reported_once(
    driver: FakeDriver, nvml: NvmlLibrary
) -> None:
    driver.gives("nvmlDeviceGetPowerUsage", 1)
    with capture_logs() as lines:
        driver.gives_fields({(REPLAY, 0): ("uiVal", 3), (CRC, 0): ("ullVal", 2**40)})
        assert nvml.measure(0) == {"power_mw": 1, "nvlink_errors": 2**40 + 3}
        driver.gives_fields({(OF_LINK, 0): ("ullVal", 1), (OF_LINK, 17): ("ullVal", 20)})
        assert nvml.measure(0) == {"power_mw": 1, "nvlink_errors": 21}
        driver.gives_fields({})
        assert nvml.measure(0) == {"power_mw": 1}
        assert lines == []
        driver.refuses("nvmlDeviceGetClockInfo", pynvml.NVML_ERROR_UNKNOWN)
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
