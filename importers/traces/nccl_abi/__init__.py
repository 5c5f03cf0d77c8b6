"""How NCCL lays out what it tells a profiler, read from NVIDIA's own binaries: one JSON file per release."""

from importers.traces.nccl_abi.layouts import Field, Layout, arguments_layout, layout

__all__ = ["Field", "Layout", "arguments_layout", "layout"]
