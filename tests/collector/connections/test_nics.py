"""A NIC has one name in all rows: the topology's where that knows it, else that of its counters."""

from pathlib import Path

import pytest

from collector.connections.nics import HostNics, read_nics
from lockstep.topology import Gpu, Nic, Node, Topology
from tests.collector.sources.imitated_rdma import imitate_port

NODE = Node(
    id="h0",
    kind="host",
    nics=(Nic(id="eth0"), Nic(id="mlx5_1")),
    gpus=(Gpu(id="a", index=0, nics=("eth0",)), Gpu(id="b", index=1, nics=("eth0", "mlx5_1"))),
)
NICS = HostNics({"mlx5_0": ("eth0",), "mlx5_1": ("eth1",), "mlx4_0:1": (), "mlx4_0:2": ()}, ("eth0", "eth1"), NODE)


@pytest.mark.parametrize(
    ("port", "name"),
    [
        ("mlx5_0:1", "eth0"),
        ("mlx5_1:1", "mlx5_1"),
        ("mlx4_0:2", "mlx4_0:2"),
        ("mlx5_9:1", "mlx5_9"),
        ("mlx5_9", "mlx5_9"),
    ],
)
def test_rdma_port_is_named_as_in_the_topology_or_as_its_counters(port: str, name: str) -> None:
    assert NICS.name_port(port) == name


@pytest.mark.parametrize(("interface", "name"), [("eth0", "eth0"), ("eth1", "mlx5_1"), ("eth9", "eth9")])
def test_interface_is_named_as_in_the_topology(interface: str, name: str) -> None:
    assert NICS.name_interface(interface) == name


def test_gpu_has_a_nic_where_the_topology_gives_it_one() -> None:
    assert [NICS.nic_of_gpu(gpu) for gpu in (0, 1, 2, None)] == ["eth0", None, None, None]


def test_joined_devices_are_listed_and_none_is_no_name() -> None:
    assert NICS.name_devices(("mlx5_0:1", "mlx5_1:1"), "ib") == "eth0,mlx5_1"
    assert NICS.name_devices((), "ib") is None


def test_only_nic_is_reported_by_topology_then_rdma_then_interfaces() -> None:
    assert NICS.only_nic() is None
    assert HostNics({"mlx5_0": ("eth0",)}, ("eth0", "eth1")).only_nic() == "mlx5_0"
    assert HostNics({}, ("eth0",)).only_nic() == "eth0"
    assert HostNics().only_nic() is None


def test_nics_are_read_from_sysfs_without_those_that_are_software(tmp_path: Path) -> None:
    imitate_port(tmp_path, "mlx5_0", netdev="eth0")
    (tmp_path / "sys/class/net/eth0/device").mkdir(parents=True)
    (tmp_path / "sys/class/net/docker0").mkdir()
    topology = Topology(routing="ecmp", nodes=(NODE,), links=())
    assert read_nics(tmp_path, "h0", topology) == HostNics({"mlx5_0": ("eth0",)}, ("eth0",), NODE)
    assert read_nics(tmp_path / "none", "h9", topology) == HostNics()
