"""A topology is imported with what was assumed, checked, shown, compared and published; errors are sentences."""

import json
from pathlib import Path

from lockstep.fabrics import leaf_spine
from lockstep.topology import Topology, dump_topology, load_topology
from tests.cli.commands import Outcome, Run, check_failure

DATA = Path(__file__).parents[1] / "data/topologies"
FABRIC = leaf_spine(hosts=8, nics_per_host=1, leaves=4, spines=4)


def written(folder: Path, topology: Topology = FABRIC, name: str = "topology.json") -> Path:
    (folder / name).write_text(dump_topology(topology))
    return folder / name


def altered(**facts: object) -> Topology:
    return FABRIC.model_copy(update={"links": (*FABRIC.links[:-1], FABRIC.links[-1].model_copy(update=facts))})


def broken(folder: Path) -> Path:
    text = dump_topology(FABRIC).replace('"b": "leaf0"', '"b": "nowhere"').replace('"gbps": 400.0', '"gbps": -1.0', 1)
    (folder / "broken.json").write_text(text)
    return folder / "broken.json"


def test_import_writes_the_topology_and_says_what_was_assumed(lockstep: Run, tmp_path: Path) -> None:
    target = tmp_path / "topology.json"
    outcome = lockstep("topology", "import", "slurm", DATA / "topology.conf", "--out", target, "--gbps", "200")
    assert (outcome.code, outcome.out) == (0, "")
    assert outcome.err.startswith("assumed:\n")
    assert "  - the rate of 6 links is unknown: 200 Gbit/s is assumed for each\n" in outcome.err
    assert outcome.err.endswith(f"wrote {target}: 4 hosts, 3 switches, 6 links\n")
    assert {link.gbps for link in load_topology(target).links} == {200}
    target = tmp_path / "t.json"
    more = ("--with", f"nccl-xml:{DATA / 'nccl'}", "--routing", "adaptive")
    file = DATA / "ibnetdiscover.txt"
    outcome = lockstep("topology", "import", "ibnetdiscover", file, "--out", target, *more, "--json")
    assert outcome.code == 0
    told = json.loads(outcome.out)
    assert (told["gpus"], told["hosts"], told["routing"]) == (8, 4, "adaptive")
    assert any("tiers of switches are inferred" in sentence for sentence in told["assumed"])
    assert load_topology(target).routing == "adaptive"
    target = tmp_path / "t.json"
    lockstep("topology", "import", "nccl-xml", DATA / "nccl/n1.xml", "--host", "gpu-07", "--out", target)
    assert [node.id for node in load_topology(target).nodes] == ["gpu-07"]
    lockstep("topology", "import", "lldp", DATA / "topology.conf", "--out", target)
    assert [node.id for node in load_topology(target).nodes] == ["gpu-07"]


def test_wrong_arguments_are_one_sentence_and_contradictions_told_all_at_once(lockstep: Run, tmp_path: Path) -> None:
    conf, target = DATA / "topology.conf", tmp_path / "t.json"
    refused: list[tuple[tuple[object, ...], str]] = [
        (("dot", "x"), "there is no format 'dot'; the known ones are: ibnetdiscover"),
        (("slurm", "/nowhere/topology.conf"), "/nowhere/topology.conf: No such file or directory"),
        (("slurm", conf, "--with", "nccl-xml"), "--with is 'nccl-xml', but must be FORMAT:PATH"),
        (("slurm", conf, "--with", "dot:x"), "there is no format 'dot'"),
        (("slurm", conf, "--gbps", "0"), "--gbps is 0, but a rate is finite and above 0"),
        (("slurm", conf, "--gbps", "nan"), "--gbps is nan, but a rate is finite and above 0"),
        (("slurm", conf, "--host", "h"), "--host names the node of one file"),
    ]
    for arguments, sentence in refused:
        check_failure(lockstep("topology", "import", *arguments, "--out", target), sentence)
    outcome = lockstep("topology", "import", "slurm", conf, "--out", target, "--routing", "magic")
    check_failure(outcome, "--routing", code=2)
    conf = tmp_path / "topology.conf"
    conf.write_text("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\nSwitchName=c Switches=c\n")
    outcome = lockstep("topology", "import", "slurm", conf, "--out", tmp_path / "t.json")
    assert outcome.code == 1
    assert outcome.err.splitlines() == [
        "lockstep: this topology cannot be used:",
        f"  - {conf}: switch c is its own ancestor: c > c",
        f"  - {conf}: host n1 is under switch a and under switch b, but has one leaf",
    ]
    assert not (tmp_path / "t.json").exists()


def test_sound_topology_passes_the_check_and_every_contradiction_is_named(lockstep: Run, tmp_path: Path) -> None:
    file = written(tmp_path)
    assert lockstep("topology", "check", file) == Outcome(0, f"{file} is sound\n", "")
    assert json.loads(lockstep("topology", "check", file, "--json").out) == {"complaints": []}
    file = broken(tmp_path)
    outcome = lockstep("topology", "check", file)
    assert (outcome.code, outcome.out) == (1, "")
    assert outcome.err.startswith("lockstep: this topology cannot be used:\n")
    as_json = lockstep("topology", "check", file, "--json")
    complaints = json.loads(as_json.out)["complaints"]
    assert (as_json.code, as_json.err) == (1, "")
    assert outcome.err.splitlines()[1:] == [f"  - {complaint}" for complaint in complaints]
    assert any("no node 'nowhere'" in complaint for complaint in complaints)
    assert any("gbps -1.0" in complaint for complaint in complaints)


def test_show_tells_tiers_and_what_is_uneven_and_diff_what_is_different(lockstep: Run, tmp_path: Path) -> None:
    outcome = lockstep("topology", "show", written(tmp_path, altered(gbps=100.0)))
    assert (outcome.code, outcome.err) == (0, "")
    assert outcome.out.startswith("8 hosts, 64 GPUs, 8 NICs, 24 links (0 down), routing ecmp\n")
    leaf = next(line for line in outcome.out.splitlines() if line.strip().startswith("leaf"))
    assert leaf.split() == ["leaf", "4", "3,200", "6,100", "0.52", "0.62", "leaf3"]
    assert "uneven:\n  - link leaf3--spine3 runs at 100 Gbit/s, 15 of the 16 links" in outcome.out
    told = json.loads(lockstep("topology", "show", written(tmp_path), "--json").out)
    assert [tier["oversubscription"] for tier in told["tiers"]] == [0.5, None]
    assert told["uneven"] == []
    old, new = written(tmp_path), written(tmp_path, altered(up=False), "new.json")
    assert lockstep("topology", "diff", old, old).out == "no difference\n"
    assert lockstep("topology", "diff", old, new).out == "changed:\n  - link leaf3--spine3: went down\n"
    told = json.loads(lockstep("topology", "diff", old, new, "--json").out)
    assert told == {"added": [], "removed": [], "changed": ["link leaf3--spine3: went down"]}
    old, new = written(tmp_path, leaf_spine(100, 1, 1, 1)), written(tmp_path, FABRIC, "new.json")
    removed = json.loads(lockstep("topology", "diff", old, new, "--json").out)["removed"]
    assert len(removed) > 100
    assert f"  and {len(removed) - 50} more\n" in lockstep("topology", "diff", old, new).out


def test_published_topologies_are_versions_and_only_those_can_be_fetched(lockstep: Run, tmp_path: Path) -> None:
    check_failure(lockstep("topology", "fetch", "--out", tmp_path / "t.json"), "no topology was published")
    check_failure(lockstep("topology", "fetch", "7", "--out", tmp_path / "t.json"), "there is no topology 7")
    assert lockstep("topology", "publish", broken(tmp_path)).code == 1
    assert json.loads(lockstep("topology", "history", "--json").out) == []
    first, second = written(tmp_path), written(tmp_path, altered(up=False), "new.json")
    assert lockstep("topology", "publish", first).err == f"{first} is version 1\n"
    assert lockstep("topology", "publish", first).err == "version 1 is the same: nothing new\n"
    assert lockstep("topology", "publish", second, "--why", "link cut").err == f"{second} is version 2\n"
    versions = json.loads(lockstep("topology", "history", "--json").out)
    assert [(version["number"], version["source"]) for version in versions] == [(2, str(second)), (1, str(first))]
    assert str(first) in lockstep("topology", "history").out
    outcome = lockstep("topology", "fetch", "--out", tmp_path / "newest.json")
    assert outcome.err.startswith(f"wrote {tmp_path / 'newest.json'}: version 2, published ")
    assert load_topology(tmp_path / "newest.json") == altered(up=False)
    lockstep("topology", "fetch", "1", "--out", tmp_path / "old.json")
    assert load_topology(tmp_path / "old.json") == FABRIC
