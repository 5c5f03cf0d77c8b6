"""RDMA ports as the kernel shows them, below a folder, and a host that has them."""

from pathlib import Path
from typing import Any

from collector.sources.rdma import RdmaSource
from tests.collector.sources.reader import Reader

HEALTHY = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)", "link_layer": "InfiniBand"}
COUNTERS = {"port_rcv_data": 1_000, "port_xmit_data": 2_000, "port_rcv_errors": 1, "port_xmit_constraint_errors": 2}
COUNTERS |= {"port_xmit_discards": 3, "VL15_dropped": 9, "symbol_error": 0, "link_downed": 0}
HW_COUNTERS = {"out_of_buffer": 4, "local_ack_timeout_err": 5, "packet_seq_err": 6, "implied_nak_seq_err": 7}


def imitate_port(root: Path, device: str = "mlx5_0", port: str = "1", netdev: str = "", **files: str) -> Path:
    """Make a port as the kernel shows it below `root`; `files` replaces what a healthy one has."""
    folder = root / "sys/class/infiniband" / device / "ports" / port
    write_all(folder / "counters", COUNTERS)
    write_all(folder / "hw_counters", HW_COUNTERS)
    for file, text in {**HEALTHY, **files}.items():
        (folder / file).write_text(text + "\n")
    if netdev:
        write_all(folder.parent.parent / "device/net" / netdev, {"operstate": "up"})
    return folder


def write_all(folder: Path, files: dict[str, Any]) -> None:
    folder.mkdir(parents=True)
    for name, value in files.items():
        (folder / name).write_text(f"{value}\n")


def host_of(root: Path) -> Reader:
    return Reader(RdmaSource("h0", root), ("kind", "severity", "message"))
