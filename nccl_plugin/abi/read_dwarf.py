"""Reads the layouts of NCCL's profiler interface out of the debug information in its binary.

NVIDIA ships libnccl.so.2 with DWARF, so what NCCL hands to a plugin is known from the binary that does it. To write
the golden data again, from the repository's root:

    python -m nccl_plugin.abi.read_dwarf [RELEASE ...]

It downloads one wheel after the other (some 900 MB for all) and says which files changed.
"""

import json
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from elftools.dwarf.die import DIE
from elftools.dwarf.dwarfinfo import DWARFInfo
from elftools.elf.elffile import ELFFile

from importers.traces.nccl_abi import RELEASES, ReleaseFacts, StructureFacts, VersionFacts, facts_file
from lockstep.errors import BadInput, NotPresent

COMPOSITE = ("DW_TAG_structure_type", "DW_TAG_union_type")
NAMES_ANOTHER = ("DW_TAG_typedef", "DW_TAG_const_type", "DW_TAG_volatile_type")
Rename = Callable[[str], str]


def read_release(library: Path, release: str) -> ReleaseFacts:
    """Return what this libnccl.so.2 says about the profiler interface, under our names."""
    with library.open("rb") as file:
        elf = ELFFile(file)
        symbols = known_symbols(elf)
        # NCCL's profiler loader; the other 200 sources take long and add nothing.
        types = list(top_level_types(elf.get_dwarf_info(), "plugin/profiler"))
        return {
            "nccl": release,
            "symbols": symbols,
            "events": enumeration(types, "ncclProfileGroup", EVENTS),
            "states": enumeration(types, "ncclProfilerProxyOpSendPosted", STATES),
            "versions": {str(version): version_facts(types, version) for version in versions_of(symbols)},
        }


def known_symbols(elf: ELFFile) -> list[str]:
    """Return the tables that the binary can ask a plugin for: the names that it holds as constants."""
    section = elf.get_section_by_name(".rodata")
    constants = section.data() if section else b""
    found = {int(number) for number in re.findall(rb"(?<![A-Za-z])ncclProfiler_v(\d+)(?=\0)", constants)}
    return [f"ncclProfiler_v{version}" for version in sorted(found)]


def versions_of(symbols: Iterable[str]) -> list[int]:
    return [int(symbol.removeprefix("ncclProfiler_v")) for symbol in symbols]


def top_level_types(dwarf: DWARFInfo, source: str) -> Iterator[DIE]:
    """Yield what is declared at the top of each compilation unit whose source file has this in its name."""
    for unit in dwarf.iter_CUs():
        top = unit.get_top_DIE()
        if source in (name_of(top) or ""):
            yield from top.iter_children()


def version_facts(types: list[DIE], version: int) -> VersionFacts:
    """Return the three structures of one version of the interface."""

    def facts(typedef: str, rename: Rename) -> StructureFacts:
        return structure_facts(find_type(types, f"{typedef}_v{version}_t"), rename)

    return {
        "table": facts("ncclProfiler", by(TABLE)),
        "descriptor": facts("ncclProfilerEventDescr", each_part(by(DESCRIPTOR))),
        "arguments": facts("ncclProfilerEventStateArgs", by(ARGUMENTS)),
    }


def structure_facts(structure: DIE, rename: Rename) -> StructureFacts:
    """Return the structure's size and, for each field down to the last level, where it stands."""
    fields = {rename(path): (offset, size) for path, offset, size in _fields(structure)}
    return {"size": structure.attributes["DW_AT_byte_size"].value, "fields": fields}


def find_type(types: list[DIE], name: str) -> DIE:
    """Return the structure or union that goes by this name."""
    for die in types:
        if name_of(die) == name and die.tag in (*NAMES_ANOTHER, *COMPOSITE):
            return behind_names(die)
    raise BadInput(f"the debug information describes no {name}: it was stripped, or NCCL has moved the type")


def enumeration(types: list[DIE], having: str, ours: dict[str, str]) -> dict[str, int]:
    """Return our names and the values of the enumeration that has this member."""
    for die in types:
        members = list(die.iter_children()) if die.tag == "DW_TAG_enumeration_type" else []
        values = {name_of(member) or "": member.attributes["DW_AT_const_value"].value for member in members}
        if having in values:
            in_order = sorted(values.items(), key=lambda item: item[1])
            return {by(ours)(name): value for name, value in in_order}
    raise BadInput(f"the debug information describes no enumeration that has {having}")


def by(ours: dict[str, str]) -> Rename:
    """Return the renaming of one table below, which refuses what is not in it."""

    def rename(name: str) -> str:
        if name not in ours:
            raise BadInput(
                f"NCCL has `{name}`, for which nccl_plugin/abi/read_dwarf.py has no name yet: look at it first"
            )
        return ours[name]

    return rename


def each_part(rename: Rename) -> Rename:
    """Return the renaming that goes over a dotted name part by part."""
    return lambda path: ".".join(map(rename, path.split(".")))


def name_of(die: DIE) -> str | None:
    """Return the name in the source, or None for what has none."""
    name = die.attributes.get("DW_AT_name")
    return None if name is None else name.value.decode()


def behind_names(die: DIE) -> DIE:
    """Return the type itself, past typedefs and qualifiers."""
    while die.tag in NAMES_ANOTHER:
        die = die.get_DIE_from_attribute("DW_AT_type")
    return die


def _fields(structure: DIE, base: int = 0, path: tuple[str, ...] = ()) -> Iterator[tuple[str, int, int]]:
    for member in structure.iter_children():
        if member.tag != "DW_TAG_member":
            continue
        location = member.attributes.get("DW_AT_data_member_location")  # a union's members have none
        offset = base + (0 if location is None else location.value)
        name = name_of(member)
        here = path if name is None else (*path, name)
        kind = behind_names(member.get_DIE_from_attribute("DW_AT_type"))
        if kind.tag in COMPOSITE:
            yield from _fields(kind, offset, here)
        else:
            yield ".".join(here), offset, _size(kind)


def _size(kind: DIE) -> int:
    size = kind.attributes.get("DW_AT_byte_size")
    return int(kind.cu["address_size"] if size is None else size.value)  # compilers may leave a pointer's size out


def as_text(facts: ReleaseFacts) -> str:
    """Return the file's content: one field a line, the same bytes for the same facts."""
    spread = json.dumps(facts, indent=1)
    return re.sub(r"\[\s+(\d+),\s+(\d+)\s+\]", r"[\1, \2]", spread) + "\n"


# NCCL's names for the parts of its profiler interface, and ours for the same. A name of NCCL's that stands nowhere
# here stops the reader: a new release has something that we have not looked at.
MEMBERS = {
    "ceColl": "ce_coll",
    "ceCollBatch": "ce_batch",
    "ceCollSync": "ce_sync",
    "coll": "coll",
    "collApi": "coll_api",
    "groupApi": "group_api",
    "kernelCh": "kernel_channel",
    "kernelLaunch": "kernel_launch",
    "kernelPhase": "kernel_phase",
    "netPlugin": "net_plugin",
    "p2p": "p2p",
    "p2pApi": "p2p_api",
    "proxyOp": "proxy_op",
    "proxyStep": "proxy_step",
}

_SAME = ("algo", "count", "data", "func", "id", "name", "op", "peer", "pid", "proto", "rank", "root", "step")
FIELDS = {name: name for name in _SAME} | {
    "batchSize": "batch",
    "buff": "buffer",
    "ceSeqNum": "ce_seq",
    "channelId": "channel",
    "chunkSize": "chunk",
    "commHash": "comm_id",
    "datatype": "dtype",
    "graphCaptured": "captured",
    "groupDepth": "depth",
    "intraBatchSync": "intra_sync",
    "isCollnet": "collnet",
    "isComplete": "complete",
    "isNvls": "nvls",
    "isSend": "send",
    "isSymColl": "symmetric",
    "kernelVariant": "variant",
    "nChannels": "channels",
    "nMaxChannels": "channels",  # v1 to v3
    "nRanks": "ranks",
    "nSteps": "steps",
    "nWarps": "warps",
    "numBatches": "batches",
    "numOps": "ops",
    "pTimer": "gpu_ns",
    "parentGroup": "group",
    "parentObj": "parent",
    "phaseId": "phase",
    "phaseName": "name",
    "recvBuff": "recv",
    "sendBuff": "send",
    "seqNumber": "seq",
    "stream": "stream",
    "syncStrategy": "sync",
    "totalBytes": "bytes",
    "trafficBytes": "traffic",
    "type": "type",
    "useIntraSync": "intra_sync",
    "userTag": "tag",
}

DESCRIPTOR = MEMBERS | FIELDS

# The arguments of a state: ours is one flat union.
ARGUMENTS = {
    "kernelCh.pTimer": "gpu_ns",
    "netPlugin.data": "data",
    "proxyCtrl.appendedProxyOps": "appended",
    "proxyOp.steps": "steps",
    "proxyOp.transSize": "bytes",
    "proxyStep.transSize": "bytes",
}

TABLE = {
    "finalize": "finalize",
    "init": "init",
    "name": "name",
    "recordEventState": "record",
    "startEvent": "start",
    "stopEvent": "stop",
}

EVENTS = {
    "ncclProfileCeBatch": "ABI_CE_BATCH",
    "ncclProfileCeColl": "ABI_CE_COLL",
    "ncclProfileCeSync": "ABI_CE_SYNC",
    "ncclProfileColl": "ABI_COLL",
    "ncclProfileCollApi": "ABI_COLL_API",
    "ncclProfileGroup": "ABI_GROUP",
    "ncclProfileGroupApi": "ABI_GROUP_API",
    "ncclProfileKernelCh": "ABI_KERNEL_CHANNEL",
    "ncclProfileKernelLaunch": "ABI_KERNEL_LAUNCH",
    "ncclProfileKernelPhase": "ABI_KERNEL_PHASE",
    "ncclProfileNetPlugin": "ABI_NET_PLUGIN",
    "ncclProfileP2p": "ABI_P2P",
    "ncclProfileP2pApi": "ABI_P2P_API",
    "ncclProfileProxyCtrl": "ABI_PROXY_CTRL",
    "ncclProfileProxyOp": "ABI_PROXY_OP",
    "ncclProfileProxyStep": "ABI_PROXY_STEP",
}

STATES = {
    "ncclProfilerCeBatchComplete": "ABI_CE_BATCH_COMPLETE",
    "ncclProfilerCeBatchStart": "ABI_CE_BATCH_START",
    "ncclProfilerCeCollComplete": "ABI_CE_COLL_COMPLETE",
    "ncclProfilerCeCollStart": "ABI_CE_COLL_START",
    "ncclProfilerCeSyncComplete": "ABI_CE_SYNC_COMPLETE",
    "ncclProfilerCeSyncStart": "ABI_CE_SYNC_START",
    "ncclProfilerGroupEndApiStart": "ABI_GROUP_END_START",
    "ncclProfilerGroupStartApiStop": "ABI_GROUP_START_STOP",
    "ncclProfilerKernelChStop": "ABI_KERNEL_STOP",
    "ncclProfilerKernelPhaseStop": "ABI_PHASE_STOP",
    "ncclProfilerNetPluginUpdate": "ABI_NET_PLUGIN_UPDATE",
    "ncclProfilerProxyCtrlActive": "ABI_CTRL_ACTIVE",
    "ncclProfilerProxyCtrlAppend": "ABI_CTRL_APPEND",
    "ncclProfilerProxyCtrlAppendEnd": "ABI_CTRL_APPEND_END",
    "ncclProfilerProxyCtrlIdle": "ABI_CTRL_IDLE",
    "ncclProfilerProxyCtrlSleep": "ABI_CTRL_SLEEP",
    "ncclProfilerProxyCtrlWakeup": "ABI_CTRL_WAKEUP",
    "ncclProfilerProxyOpInProgress_v4": "ABI_OP_IN_PROGRESS",
    "ncclProfilerProxyOpRecvDone": "ABI_OP_RECV_DONE",
    "ncclProfilerProxyOpRecvPosted": "ABI_OP_RECV_POSTED",
    "ncclProfilerProxyOpRecvReceived": "ABI_OP_RECV_RECEIVED",
    "ncclProfilerProxyOpRecvTransmitted": "ABI_OP_RECV_TRANSMITTED",
    "ncclProfilerProxyOpSendDone": "ABI_OP_SEND_DONE",
    "ncclProfilerProxyOpSendPosted": "ABI_OP_SEND_POSTED",
    "ncclProfilerProxyOpSendRemFifoWait": "ABI_OP_SEND_FIFO_WAIT",
    "ncclProfilerProxyOpSendTransmitted": "ABI_OP_SEND_TRANSMITTED",
    "ncclProfilerProxyStepRecvFlushWait": "ABI_RECV_FLUSH_WAIT",
    "ncclProfilerProxyStepRecvGPUWait": "ABI_RECV_GPU_WAIT",
    "ncclProfilerProxyStepRecvWait": "ABI_RECV_WAIT",
    "ncclProfilerProxyStepSendGPUWait": "ABI_SEND_GPU_WAIT",
    "ncclProfilerProxyStepSendPeerWait_v4": "ABI_SEND_PEER_WAIT",
    "ncclProfilerProxyStepSendWait": "ABI_SEND_WAIT",
}

PACKAGES = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")  # the same NCCL, built with one CUDA or the other
LIBRARY = "nvidia/nccl/lib/libnccl.so.2"
PIP_DOWNLOAD = (
    *(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"),
    "--no-cache-dir",  # else a gigabyte stays behind that nobody else needs
)


@contextmanager
def downloaded_library(release: str) -> Iterator[Path]:
    """Give the release's libnccl.so.2, for this machine's architecture, until the block ends; some 600 MB of disk.

    Raises NotPresent when no wheel can be had, be it that PyPI is out of reach.
    """
    with tempfile.TemporaryDirectory(prefix="lockstep-nccl-") as folder:
        wheel = _download(release, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            library = Path(archive.extract(LIBRARY, folder))
        wheel.unlink()
        yield library


def _download(release: str, folder: Path) -> Path:
    complaints = []
    for package in PACKAGES:
        done = subprocess.run(
            [*PIP_DOWNLOAD, "--dest", str(folder), f"{package}=={release}"],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode == 0:
            return next(folder.glob("*.whl"))
        complaints += done.stderr.strip().splitlines()[-1:]
    raise NotPresent(f"pip cannot download the wheel of NCCL {release}: {'; '.join(complaints)}")


def main(releases: list[str]) -> None:
    """Write the golden data of these releases."""
    for release in releases:
        with downloaded_library(release) as library:
            text = as_text(read_release(library, release))
        file = facts_file(release)
        changed = not file.exists() or file.read_text(encoding="utf-8") != text
        file.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{file.name}: {'written' if changed else 'as it was'}\n")


if __name__ == "__main__":
    main(sys.argv[1:] or list(RELEASES))
