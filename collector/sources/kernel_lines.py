"""What a line of the kernel's log says about a GPU, a NIC, PCIe or memory; pure, and silent about everything else."""

import json
import re
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal

Severity = Literal["info", "warning", "error", "critical"]
Blame = Literal["application", "hardware", "unclear"]
Whose = Literal["gpu", "nic", "host"]

_MAX_MESSAGE = 1024  # characters; the kernel's own lines are shorter (LOG_LINE_MAX), a forged one need not be
_MAX_NUMBER = 1 << 63  # of a sequence number or a time; no counter of the kernel gets there


@dataclass(frozen=True, slots=True)
class Record:
    """One record of /dev/kmsg."""

    seq: int  # counted from 0 at boot, without gaps
    since_boot_ns: int  # on the clock of printk
    from_kernel: bool  # False: a program wrote it into the log
    text: str


@dataclass(frozen=True, slots=True)
class Part:
    """The part a line is about; `id` is a PCI address or the name of a NIC, and empty for the host."""

    whose: Whose
    id: str = ""


@dataclass(frozen=True, slots=True)
class Finding:
    """What a line says happened; `code` tells apart happenings of one kind, such as two XIDs."""

    kind: str
    part: Part
    severity: Severity
    message: str
    code: str = ""
    detail: str | None = None  # for programs, as JSON


@dataclass(frozen=True, slots=True)
class Xid:
    """What an XID means for us; data/xid.toml says where each field comes from."""

    name: str
    meaning: str
    action: str  # NVIDIA's bucket for what to do at once, such as RESET_GPU; empty when there is none
    investigate: str  # NVIDIA's bucket for what to do afterwards
    severity: Severity
    blame: Blame  # "application" is never a reason to isolate hardware
    nonfatal_severity: Severity | None = None  # where the line itself says Nonfatal


@cache
def load_xids() -> Mapping[int, Xid]:
    """Return the table of XIDs that ships with the collector, by number."""
    text = resources.files("collector").joinpath("data/xid.toml").read_text(encoding="utf-8")
    table: dict[int, Xid] = {}
    for row in tomllib.loads(text)["xid"]:
        table |= dict.fromkeys(row.pop("numbers"), Xid(**row))
    return table


def parse_records(chunk: bytes) -> list[Record]:
    """Return the records in what a read of /dev/kmsg gave; what is not one is left out.

    Lines that begin with a space belong to the record before them and hold the device in a form that differs between
    drivers; the message names it too, so they are not needed.

    >>> parse_records(b"4,7,1500000,-;Out of memory\\n SUBSYSTEM=pci\\n")[0].since_boot_ns
    1500000000
    """
    lines = chunk.decode(errors="replace").split("\n")
    return [record for line in lines if (record := _parse_record(line))]


def read_line(record: Record, xids: Mapping[int, Xid]) -> Finding | None:
    """Return what the record says happened, or None when it is about nothing of ours."""
    for marker, pattern, describe in _RULES:
        if marker in record.text and (match := pattern.search(record.text)):
            # Drills write such lines on purpose; whoever reads the event must see that no driver said this.
            message = record.text if record.from_kernel else f"(written by a program) {record.text}"
            return describe(match, message, xids)
    return None


# "priority,sequence,microseconds,flags[,more];text" (Documentation/ABI/testing/dev-kmsg).
_RECORD = re.compile(r"(\d{1,10}),(\d{1,20}),(\d{1,20}),[^;]*;(.*)", re.ASCII | re.DOTALL)


def _parse_record(line: str) -> Record | None:
    match = _RECORD.fullmatch(line)
    if match is None:
        return None
    priority, seq, since_boot_ns = int(match[1]), int(match[2]), int(match[3]) * 1_000
    if max(seq, since_boot_ns) >= _MAX_NUMBER:
        return None
    # The upper bits of a priority are the facility, and the kernel makes sure that only its own lines have 0.
    return Record(seq, since_boot_ns, from_kernel=priority < 8, text=match[4][:_MAX_MESSAGE])


Describe = Callable[[re.Match[str], str, Mapping[int, Xid]], Finding | None]
_PCI = r"(?P<pci>[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?)"
_NIC = r"(?<![\w.:@-])(?P<nic>[A-Za-z][\w.@-]{0,14})"  # 15 characters are the kernel's limit (IFNAMSIZ)
_DRIVER = r"(?<![\w-])(?P<driver>[\w-]{1,32})"
_MLX5 = rf"\Amlx5_core {_PCI}(?: {_NIC})?: .*?"
# The driver misses the heart-beat of the NIC's firmware or gives the NIC up; it does nothing more until it is reset.
_UNHEALTHY = r"(?:health compromised|[Ff]atal error \w+ detected|[Hh]ealth recovery .*fail|enter_error_state)"


def _describe_xid(match: re.Match[str], message: str, xids: Mapping[int, Xid]) -> Finding:
    number = int(match["code"])
    xid = xids.get(number)
    severity: Severity = xid.severity if xid else "warning"
    if xid and xid.nonfatal_severity and "Nonfatal" in message:
        severity = xid.nonfatal_severity
    reported = f"{xid.name}; {xid.action or 'no action named'}; blame {xid.blame}" if xid else "not in our table"
    detail = json.dumps({"xid": number, "blame": xid.blame if xid else "unclear"})
    return Finding("xid", _gpu(match), severity, f"{message} [XID {number}: {reported}]", str(number), detail)


def _describe_sxid(match: re.Match[str], message: str, _: Mapping[int, Xid]) -> Finding:
    # An NVSwitch has no name in our verdicts: the host has it, and the message keeps its PCI address and link.
    severity: Severity = "critical" if match["fatal"] == "Fatal" else "warning"
    return Finding("sxid", Part("host"), severity, message, match["code"])


def _describe_link(match: re.Match[str], message: str, _: Mapping[int, Xid]) -> Finding:
    # The log does not tell a pulled cable from a person's `ip link set down`, so it is not called an error here.
    up = match["state"].lower() in ("up", "active")
    return Finding("link_up" if up else "link_down", _nic(match), "info" if up else "warning", message)


def _describe_aer(match: re.Match[str], message: str, _: Mapping[int, Xid]) -> Finding:
    text = match["severity"].lower()
    severity: Severity = "warning" if text.startswith("correct") else "critical" if "(fatal)" in text else "error"
    return Finding("pcie_aer", _owner(match), severity, message, severity)


def _always(kind: str, severity: Severity, part: Callable[[re.Match[str]], Part]) -> Describe:
    """Return a rule's end that needs nothing but the part; the kind is its own code."""
    return lambda match, message, _: Finding(kind, part(match), severity, message)


def _gpu(match: re.Match[str]) -> Part:
    return Part("gpu", _address(match["pci"]))


def _nic(match: re.Match[str]) -> Part:
    """Return the NIC by the name in the line, else by its PCI address, which the host knows a name for."""
    named = match.groupdict()
    return Part("nic", named.get("nic") or _address(match["pci"]))


def _owner(match: re.Match[str]) -> Part:
    """Return the part that a driver drives; a bridge on the way to it is the host's."""
    whose: dict[str, Whose] = {"nvidia": "gpu", "mlx5_core": "nic"}
    owner = whose.get(match["driver"])
    return Part(owner, _address(match["pci"])) if owner else Part("host")


def _host(_: re.Match[str]) -> Part:
    return Part("host")


def _address(pci: str) -> str:
    """Return a PCI address as sysfs writes it; NVRM leaves out the function, which is 0 for a GPU.

    >>> _address("00000000:9B:00")
    '0000:9b:00.0'
    """
    domain, bus, device = pci.lower().split(":")
    return f"{int(domain, 16):04x}:{bus}:{device if '.' in device else device + '.0'}"


# First match wins: a text that the line must contain, which is cheap to look for, the pattern, and what it tells.
_RULES: tuple[tuple[str, re.Pattern[str], Describe], ...] = tuple(
    (marker, re.compile(pattern, re.ASCII), describe)
    for marker, pattern, describe in (
        ("NVRM: Xid", rf"NVRM: Xid \((?:PCI:)?{_PCI}\): (?P<code>\d{{1,4}})\b", _describe_xid),
        ("fallen off", rf"NVRM: (?:The NVIDIA )?GPU {_PCI}.*fallen off", _always("gpu_lost", "critical", _gpu)),
        # Registers follow in lines with the same number, and with "Data" or "Severity" in the place of the verdict.
        (" SXid ", r"SXid \(PCI:[^)]{1,20}\): (?P<code>\d{1,6}), (?P<fatal>Fatal|Non-fatal)", _describe_sxid),
        ("PCIe Bus Error", rf"{_DRIVER} {_PCI}: .*?PCIe Bus Error: severity=(?P<severity>[^,]+)", _describe_aer),
        ("AER: ", rf"{_DRIVER} {_PCI}: .*?recovery failed", _always("pcie_aer", "critical", _owner)),
        ("pciehp", r"pciehp.*[Ss]lot\([^)]*\): (?:Link Down|Card not present)", _always("pcie_lost", "error", _host)),
        ("mlx5_core", rf"{_MLX5}Link (?P<state>up|down|UP|DOWN|ACTIVE)\b", _describe_link),
        ("mlx5_core", rf"{_MLX5}{_UNHEALTHY}", _always("nic_health", "critical", _nic)),
        ("mlx5_core", rf"{_MLX5}(?:timeout\. Will cause a leak|TX timeout)", _always("nic_timeout", "error", _nic)),
        ("mlx5_core", rf"{_MLX5}Port module event\[error\]", _always("nic_module", "error", _nic)),
        ("mlx5_core", rf"{_MLX5}Cable unplugged", _always("nic_module", "warning", _nic)),
        ("mlx5_core", rf"{_MLX5}insufficient power", _always("nic_power", "warning", _nic)),
        ("mlx5_core", rf"{_MLX5}Error cqe", _always("nic_error", "error", _nic)),
        # Of any driver; older kernels name the NIC behind these words, newer ones in front of them.
        ("NETDEV WATCHDOG", rf"{_NIC}: NETDEV WATCHDOG: .*timed out", _always("nic_timeout", "error", _nic)),
        ("NETDEV WATCHDOG", rf"NETDEV WATCHDOG: {_NIC} .*timed out", _always("nic_timeout", "error", _nic)),
        ("ink is ", rf"(?:{_PCI}|{_NIC}):? (?:NIC )?[Ll]ink is (?P<state>[Uu]p|[Dd]own|UP|DOWN)\b", _describe_link),
        ("ut of memory", r"[Oo]ut of memory: Kill(?:ed)? process \d", _always("oom", "error", _host)),
    )
)
