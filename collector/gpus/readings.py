"""What NVML tells about a GPU, as rows of gpu_health and as events: identity, loss, remapped memory rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from collector.telling import Teller
from lockstep.records import Event, GpuHealth

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


@dataclass(frozen=True)
class GpuIdentity:
    """The names under which a GPU is found again after a reset, in another slot, or in a vendor's ticket."""

    uuid: str
    serial: str | None
    pci: str | None

    def __str__(self) -> str:
        return f"{self.uuid}, serial {self.serial or 'unknown'}, PCI {self.pci or 'unknown'}"


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
        self._teller = Teller(host, "gpu", f"gpu:{host}/{gpu}")
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
        return [] if was_lost else [self._teller.tell(now_ns, "gpu_lost", "critical", message)]

    def _presence_events(self, now_ns: int, identity: GpuIdentity) -> list[Event]:
        if identity != self._identity:
            before = f"; before it was {self._identity}" if self._identity else ""
            self._was = {}  # another part, with a history of its own
            return [self._teller.tell(now_ns, "gpu_seen", "info", f"GPU {self._gpu} is {identity}{before}")]
        if self._is_lost:
            return [self._teller.tell(now_ns, "gpu_back", "info", f"GPU {self._gpu} ({identity}) can be read again")]
        return []

    def _row_events(self, now_ns: int, readings: Readings) -> list[Event]:
        rows = readings.get("rows_uncorrected")
        events = []
        if rows is not None and rows > self._was.get("rows_uncorrected", rows):
            message = f"{rows} memory rows are remapped after uncorrectable errors"
            events.append(self._row_event(now_ns, "row_remapped", "warning", message))
        if self._has_begun("rows_pending", readings):
            message = "memory rows wait to be remapped, which a reset of the GPU does"
            events.append(self._row_event(now_ns, "row_remap_pending", "warning", message))
        if self._has_begun("rows_failed", readings):
            message = "memory rows could not be remapped: the GPU has no spare ones left or is defective"
            events.append(self._row_event(now_ns, "row_remap_failed", "error", message))
        return events

    def _has_begun(self, flag: Quantity, readings: Readings) -> bool:
        return bool(readings.get(flag)) and not self._was.get(flag)

    def _row_event(self, now_ns: int, kind: str, severity: str, message: str) -> Event:
        return self._teller.tell(now_ns, kind, severity, f"GPU {self._gpu}: {message}")
