"""GPUs are read through NVML as far as they report themselves; one that fails leaves the others alone."""

from unittest.mock import Mock

import pytest

from collector.sources.gpu import GpuSource, throttle_words
from collector.sources.nvml import GpuIdentity, NvmlLibrary, Quantity, Readings
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


def test_healthy_gpu_is_read_in_full() -> None:
    (row,) = host_of(FakeNvml()).rows("gpu_health")
    expected = {"host": "h0", "ts_ns": T0 + SECOND, "gpu": 0, "gpu_uuid": "GPU-0", "sm_mhz": 1_980, "temp_c": 41.0}
    expected |= {"power_w": 312.5, "throttle": "", "ecc_sbe": 3, "ecc_dbe": 0, "nvlink_errors": 2}
    assert row == expected | {"pcie_replays": 1, "util": 0.97}


def test_what_a_gpu_does_not_report_is_unknown_and_a_zero_that_it_reports_is_zero() -> None:
    nvml = FakeNvml(2)
    nvml.gpus[:] = {"sm_mhz": 1_980}, dict.fromkeys(HEALTHY, 0)
    unknown, zero = host_of(nvml).rows("gpu_health")
    known = {name for name, value in unknown.items() if value is not None}
    assert known == {"host", "ts_ns", "gpu", "gpu_uuid", "sm_mhz", "throttle"}
    assert (zero["temp_c"], zero["power_w"], zero["util"], zero["ecc_sbe"]) == (0.0, 0.0, 0.0, 0)


def test_reasons_for_a_low_clock_are_words() -> None:
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


def test_gpu_that_falls_off_the_bus_and_comes_back_is_reported_once_each_and_leaves_the_others() -> None:
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


def test_gpu_lost_from_the_beginning_is_introduced_later_and_an_unloaded_driver_loses_all_once() -> None:
    nvml = FakeNvml(2)
    nvml.lost[0] = "Unknown Error"
    host = host_of(nvml)
    lost, _ = host.events()
    assert lost == ("gpu_lost", "gpu:h0/0", "GPU 0 (never read) cannot be read: Unknown Error")
    nvml.lost.clear()
    assert host.kinds() == ["gpu_seen"]
    nvml.is_away = True
    assert [host.kinds(), host.kinds()] == [["gpu_lost", "gpu_lost"], []]
    nvml.is_away = False
    assert host.kinds() == ["gpu_back", "gpu_back"]
    assert (nvml.opened, nvml.closed) == (2, 1)


def test_pending_row_remapping_is_reported_when_it_begins_and_again_after_it_was_done() -> None:
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
    nvml.serials[0] = "77"
    assert host.kinds() == ["gpu_seen", "row_remap_pending"], "that of another GPU"


def test_rows_that_were_remapped_before_us_are_no_event_and_new_or_failed_ones_are() -> None:
    nvml = FakeNvml()
    host = host_of(nvml)
    assert host.kinds() == ["gpu_seen"]
    nvml.gpus[0]["rows_uncorrected"] = 2
    ((kind, _, message),) = host.events()
    assert (kind, message) == ("row_remapped", "GPU 0: 2 memory rows are remapped after uncorrectable errors")
    nvml.gpus[0]["rows_failed"] = 1
    (event,) = host.rows("events")
    assert (event["source"], event["kind"], event["severity"]) == ("gpu", "row_remap_failed", "error")
