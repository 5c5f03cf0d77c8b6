"""Whose ring file it is, as the file says; only the owner's uid and the lock come from the kernel."""

from dataclasses import dataclass

import numpy as np

from lockstep import wire
from lockstep.errors import RingNotReady
from lockstep.rings.opening import ForeignFile

ACCEPTED_VERSIONS = (wire.VERSION,)  # and the one before, as soon as there is one


@dataclass(frozen=True)
class Identity:
    """What a process says of itself; None where its environment does not tell."""

    pid: int  # in its own namespace
    created_ns: int
    tag: int  # in every handle of this process
    host: str
    job: str
    attempt: int
    world_rank: int | None
    world_size: int | None
    local_rank: int | None
    visible_gpus: str
    plugin_version: str
    nccl_version: str | None
    api_version: int
    kernel_channels: bool
    clock_kind: int


def read_header(file: ForeignFile) -> np.void:
    """Return the header of a file that says it is a ring file, of a version we know, and complete."""
    if file.size < wire.PAGE:
        raise RingNotReady(f"has {file.size} bytes, not even a header", file=file.name)
    header: np.void = file.read_at(0, wire.HEADER.itemsize).view(wire.HEADER)[0]
    if not header["magic"] or (header["magic"] == wire.MAGIC and header["ready"] == 0):
        raise RingNotReady("is not complete yet", file=file.name)
    if header["magic"] != wire.MAGIC:
        raise file.bad("is no ring file")
    if header["version"] not in ACCEPTED_VERSIONS:
        raise file.bad(f"has version {header['version']}, and this reader knows {_list(ACCEPTED_VERSIONS)}")
    if header["ready"] != 1:
        raise file.bad(f"is neither complete nor incomplete: ready is {header['ready']}")
    return header


def identify(file: ForeignFile, header: np.void) -> Identity:
    """Return who writes the file, or raise BadRing for what no plugin writes."""
    tag, clock_kind, created_ns = (int(header[name]) for name in ("tag", "clock_kind", "created_ns"))
    if tag > 0xFFFF:
        raise file.bad(f"has the tag {tag}, which does not fit into a handle")
    if not wire.CLOCK_TSC <= clock_kind <= wire.CLOCK_REPLAY:
        raise file.bad(f"counts time in a way we do not know: {clock_kind}")
    if created_ns >= 1 << 63:
        raise file.bad(f"was made at {created_ns} ns, which is no time")
    return Identity(
        pid=int(header["pid"]),
        created_ns=created_ns,
        tag=tag,
        attempt=int(header["attempt"]),
        world_rank=_known(header["world_rank"]),
        world_size=_known(header["world_size"]) or None,
        local_rank=_known(header["local_rank"]),
        nccl_version=_nccl_version(int(header["nccl_version"])),
        api_version=int(header["api_version"]),
        kernel_channels=bool(header["kernel_channels"]),
        clock_kind=clock_kind,
        **{name: wire.text_of(header[name]) for name in ("host", "job", "visible_gpus", "plugin_version")},
    )


def _known(number: np.int32) -> int | None:
    return int(number) if number >= 0 else None


def _nccl_version(code: int) -> str | None:
    """Return NCCL's number as people write it; before 2.9 it had a digit less."""
    major, rest = divmod(code, 10_000 if code >= 10_000 else 1_000)
    return f"{major}.{rest // 100}.{rest % 100}" if code else None


def _list(versions: tuple[int, ...]) -> str:
    return " and ".join(map(str, versions))
