"""Files and folders become one topology; garbage becomes a sentence, never a crash; real files of others are read."""

import contextlib
import json
import os
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from importers.topology.formats import FORMATS, Input, import_topology, write_topology
from importers.topology.joining import Imported, JoinOptions, join_surveys
from importers.topology.survey import Source
from lockstep.errors import BadInput, BadTopology, LockstepError
from lockstep.fabrics import dual_plane
from lockstep.topology import check_topology, dump_topology, load_topology
from tests.importers.topology.build import DATA, links_of, said

FEW = settings(max_examples=12)  # for each format
SEEDS = {
    "ibnetdiscover": ("ibnetdiscover.txt",),
    "lingjun": ("lingjun.csv",),
    "lldp": ("lldp/leaf1.json",),
    "lockstep": (),
    "nccl-xml": ("nccl/n1.xml",),
    "slurm": ("topology.conf", "topology.yaml"),
    "topograph": ("topograph.json", "topograph.yaml"),
}


PLANES = dual_plane(2, 1, 1)


def imported(format_name: str, *paths: Path, host: str | None = None) -> Imported:
    return import_topology([Input(format_name, paths, host)], JoinOptions())


@pytest.fixture
def public() -> Path:
    if "LOCKSTEP_PUBLIC_DATA" not in os.environ:
        pytest.skip("no public data here: set LOCKSTEP_PUBLIC_DATA to the folder that holds it")
    return Path(os.environ["LOCKSTEP_PUBLIC_DATA"])


def test_files_are_named_after_their_node_and_formats_are_joined(tmp_path: Path) -> None:
    assert SEEDS.keys() == FORMATS.keys()
    assert len(imported("lldp", DATA / "lldp").topology.links) == 8
    file = DATA / "nccl/n1.xml"
    assert imported("nccl-xml", file).topology.nodes[0].id == "n1"
    assert imported("nccl-xml", file, host="gpu-07").topology.nodes[0].id == "gpu-07"
    inputs = [Input("ibnetdiscover", (DATA / "ibnetdiscover.txt",)), Input("nccl-xml", (DATA / "nccl",))]
    topology = import_topology(inputs, JoinOptions()).topology
    assert sum(len(host.gpus) for host in topology.hosts) == 8
    assert len(topology.links) == 8


def test_what_cannot_be_imported_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"holds 0 files that end in \.json"):
        imported("lldp", tmp_path)
    for format_name, path in (("nccl-xml", "nccl"), ("slurm", "topology.conf")):
        with pytest.raises(BadInput, match="--host names the node of one file"):
            imported(format_name, DATA / path, host="x")
    with pytest.raises(BadInput, match="there is no format 'dot'; the known ones are: ibnetdiscover, lingjun, lldp"):
        imported("dot", DATA / "topology.conf")
    for name in ("a.xml", "b.xml"):
        (tmp_path / name).write_text("<graphs/>")
    with pytest.raises(BadTopology) as refused:
        imported("nccl-xml", tmp_path)
    assert len(refused.value.complaints) == 2


def test_our_own_topology_replaces_a_file_whole_and_passes_through_as_it_is(tmp_path: Path) -> None:
    target = tmp_path / "topology.json"
    for topology in (dual_plane(4, 1, 1), PLANES):
        write_topology(topology, target)
        assert load_topology(target) == topology
    assert list(tmp_path.iterdir()) == [target], "nothing is left beside it"
    assert imported("lockstep", target) == Imported(PLANES, ())
    again = import_topology([Input("lockstep", (target,))], JoinOptions(routing="adaptive")).topology
    assert again.routing == "adaptive"
    target.write_text(dump_topology(PLANES).replace('"b": "plane0-leaf0"', '"b": "gone"'))
    with pytest.raises(BadTopology, match="there is no node 'gone'"):
        imported("lockstep", target)


def read_garbage(format_name: str, data: bytes) -> None:
    """Import these bytes: what comes out is sound, and nothing is raised but our own errors."""
    with contextlib.suppress(LockstepError):
        surveys = FORMATS[format_name].parse([Source("garbage", "n1", data)])
        topology = join_surveys(surveys, JoinOptions()).topology
        assert check_topology(topology) == []
        dump_topology(topology).encode()


KEYS = ["lldp", "interface", "chassis", "port", "id", "name", "value", "type", "descr", "capability", "enabled"]
KEYS += ["instances", "network_layers", "labels", "nodes", "links", "auto-negotiation", "current"]
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=20,
).map(json.dumps)


@pytest.mark.parametrize("format_name", FORMATS)
@FEW
@given(
    data=st.binary(max_size=200) | (st.text(max_size=200) | JSON).map(lambda text: text.encode("utf-8", "replace"))
)
def test_any_bytes_and_json_of_any_shape_are_read_or_refused(format_name: str, data: bytes) -> None:
    read_garbage(format_name, data)


@pytest.mark.parametrize("format_name", FORMATS)
@FEW
@given(chance=st.data())
def test_damaged_files_are_read_or_refused(format_name: str, chance: st.DataObject) -> None:
    seeds = [(DATA / name).read_bytes() for name in SEEDS[format_name]] or [dump_topology(PLANES).encode()]
    data = bytearray(chance.draw(st.sampled_from(seeds)))
    for _ in range(chance.draw(st.integers(1, 6))):
        begin = chance.draw(st.integers(0, len(data)))
        end = chance.draw(st.integers(begin, min(len(data), begin + 30)))
        patch = st.sampled_from([b"", b"\x00", b'"', b"[", b"}", b"n1", b"--", b"/", b"\xff", b" ", b"\n", b"9" * 9])
        data[begin:end] = chance.draw(patch)
    read_garbage(format_name, bytes(data))


def test_published_fabrics_have_their_tiers(public: Path) -> None:
    found = imported("lingjun", public / "topo_fabric/alibaba_lingjun_2023_topo.csv")
    tiers = Counter(node.tier or node.kind for node in found.topology.nodes)
    assert tiers == {"host": 847, "leaf": 119, "spine": 3, "core": 1}
    below = Counter(link.b for link in found.topology.links if "/" in link.a)
    assert max(below.values()) == 8  # what a leaf of these has; 48 leaves would have up to 24
    assert said(found, "stand below several PSWs")
    found = imported("ibnetdiscover", public / "topo_fabric/ibnetdiscover_faked_superbench.txt")
    tiers = Counter(node.tier or node.kind for node in found.topology.nodes)
    assert tiers == {"host": 10, "leaf": 5, "spine": 2, "core": 1}
    assert "RMD701091901003/ibp11s0f0--rmd70-0101-0919-01ib0/1" in links_of(found.topology)
    assert {link.gbps for link in found.topology.links} == {200}


@pytest.mark.parametrize(
    ("model", "hosts", "leaves"),
    [("medium", 8, 4), ("large", 96, 12), ("nvl72", 72, 4), ("dual-xclr-irregular", 255, 31)],
)
def test_models_of_topograph_have_their_hosts_and_leaves(public: Path, model: str, hosts: int, leaves: int) -> None:
    topology = imported("topograph", public / f"topo_fabric/topograph_models/{model}.yaml").topology
    assert len(topology.hosts) == hosts
    assert sum(switch.tier == "leaf" for switch in topology.switches) == leaves


def test_hosts_of_rccl_and_clouds_have_their_gpus_and_their_nics(public: Path) -> None:
    topology = imported("nccl-xml", public / "topo_host_xml/rccl").topology
    assert len(topology.hosts) == 30
    assert all(gpu.nics for host in topology.hosts for gpu in host.gpus if host.nics)
    mi300 = next(host for host in topology.hosts if host.id == "topo_8p_940")
    assert [gpu.nics for gpu in mi300.gpus] == [(f"mlx5_{number}",) for number in range(8)]
    for machine, nics in (("aws/p4d-24xl-topo", 1), ("azure/ndv4-topo", 2)):
        (host,) = imported("nccl-xml", public / f"topo_host_xml/{machine}.xml").topology.hosts
        assert [len(gpu.nics) for gpu in host.gpus] == [nics] * 8
