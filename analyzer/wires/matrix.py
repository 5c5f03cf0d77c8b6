"""The delay matrix: one cell per wire that was compared, and how much slower than its kind it is."""

from dataclasses import dataclass

import numpy as np

from analyzer.context import End


@dataclass(frozen=True, slots=True, order=True)
class Wire:
    """One way that bytes take from a GPU of a host to a GPU of another, as exactly as it is known."""

    src: End
    dst: End
    src_gpu: int | None = None  # NVML index, on the sending host
    dst_gpu: int | None = None
    path: tuple[str, ...] | None = None  # ids of the links in order of travel; None: not known which way it takes

    def __str__(self) -> str:
        return f"{self.src}--{self.dst}"


@dataclass(frozen=True, slots=True, order=True)
class InnerGroup:
    """GPUs of one host that a communicator joins."""

    host: str
    gpus: tuple[int, ...]  # NVML indices, as far as they are known


@dataclass(frozen=True)
class InnerMatrix:
    """How slow the links inside hosts are; arrays are parallel to `groups`."""

    groups: tuple[InnerGroup, ...]
    ratio: np.ndarray  # duration of the fastest rank over what is normal for groups of its kind; 1 is normal
    sigmas: np.ndarray  # excess in units of the spread between groups
    hot: np.ndarray  # whether it is slow


@dataclass(frozen=True)
class DelayMatrix:
    """The delay of every wire that was compared; arrays are parallel to `wires`."""

    wires: tuple[Wire, ...]
    transports: frozenset[str | None]
    ratio: np.ndarray  # delay over what is normal for its kind; 1 is normal
    sigmas: np.ndarray  # excess in units of the spread between wires
    hot: np.ndarray  # whether it is slow
    ns_per_byte: np.ndarray
    starved: frozenset[str] = frozenset()  # hosts whose proxy threads do not keep up: their wires look slow
    inner: InnerMatrix | None = None  # NVLink and PCIe inside hosts; None: no communicators there to compare
