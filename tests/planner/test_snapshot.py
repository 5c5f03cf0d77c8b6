"""What decisions need is read from telemetry, the controller and hints; what nobody knows stays unknown."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.arrow import rows_of
from lockstep.clock import NS_PER_S
from lockstep.fabrics import rail_optimised
from lockstep.records import Agent, Comm, HostRecord, OpStat
from lockstep.state.database import ControlDatabase
from lockstep.state.incidents import save_incidents
from lockstep.store.store import Store
from lockstep.tables import TABLE_BY_NAME
from lockstep.topology import Link, Topology
from lockstep.topology import Node as Place
from planner.context import ClusterFacts, Layout, Resume
from planner.controllers.protocol import Node
from planner.snapshot import Evidence, EvidenceReader, FactReader, JobHint, find_evidence
from tests.builders import make
from tests.planner.build import T0, crash, event, incident, seconds, verdict
from tests.planner.fake_controller import FakeController, make_world
from tests.planner.world import NODES


class FakeCheckpoints:
    def newest(self, job: str, layout: Layout | None, now_ns: int, is_resized: bool = False) -> Resume | None:
        return Resume(f"/ckpt/{job}", "dcp" if not is_resized else f"dcp on {layout}", 60.0, 5.0)

    def save_every_s(self, job: str, now_ns: int) -> float | None:
        return 600.0

    def next_save_s(self, job: str, now_ns: int) -> float | None:
        return 30.0


def reader(tmp_path: Path, store: Store | None = None, **changes: object) -> FactReader:
    parts: dict[str, object] = {
        "controller": make_world(tmp_path / "cluster.json", NODES),
        "checkpoints": FakeCheckpoints(),
        "topology": None,
        "cluster": ClusterFacts(spares=("h3", "h8", "h9"), can_restart=True),
        "hints": {"*": JobHint(min_nodes=4)},
        "enforced_share": lambda: 0.25,
    }
    return FactReader(store, **(parts | changes))  # type: ignore[arg-type]  # whatever a test replaces


def test_what_is_known_of_a_job_is_read_and_a_controller_that_is_down_is_said(tmp_path: Path) -> None:
    found = reader(tmp_path)
    snapshot = found.read(incident(crash()), seconds(10))
    job = snapshot.job
    assert (job.nodes, job.gpus, job.min_nodes, job.next_save_s) == (tuple(NODES[:8]), 64, 4, 30.0)
    assert (snapshot.cluster.enforced_share, job.resume) == (0.25, Resume("/ckpt/train", "dcp", 60.0, 5.0))
    FakeController(tmp_path / "cluster.json").change(is_down=True)
    snapshot = found.read(incident(crash()), seconds(10))
    assert (snapshot.trouble, snapshot.nodes) == ("the fake controller does not answer", None)
    assert snapshot.job.resume == job.resume
    snapshot = FactReader(None, None, None, None, ClusterFacts(), {}).read(incident(crash()), seconds(10))
    assert (snapshot.job.nodes, snapshot.job.gpus, snapshot.job.resume, snapshot.nodes) == ((), 64, None, None)


def test_spares_are_those_that_are_usable_and_on_which_nobody_runs(tmp_path: Path) -> None:
    found = reader(tmp_path)
    controller = FakeController(tmp_path / "cluster.json")
    controller.mark(h9="d0")
    assert found.read(incident(crash()), seconds(10)).cluster.spares == ("h8",)
    controller.mark(h9=None)
    found = reader(tmp_path, controller=TellingController(tmp_path / "cluster.json"))
    assert found.read(incident(crash()), seconds(10)).cluster.spares == ("h9",)


class TellingController(FakeController):
    """Says which nodes are idle, as Slurm does: all but h8."""

    def nodes(self) -> Sequence[Node]:
        return [replace(node, is_idle=node.name != "h8") for node in super().nodes()]


def test_blocks_are_racks_or_else_leaves_and_nodes_on_the_same_rails_are_close(tmp_path: Path) -> None:
    indices = [Place(id="h0", kind="host", rack="r1"), Place(id="h1", kind="host"), Place(id="leaf1", kind="switch")]
    links = [Link(id=f"l{n}", a=f"h{n}/eth0", b="leaf1", gbps=100.0) for n in range(2)]
    topology = Topology(routing="ecmp", nodes=tuple(indices), links=tuple(links))
    snapshot = reader(tmp_path, topology=topology).read(incident(crash()), seconds(10))
    assert dict(snapshot.cluster.block_of) == {"h0": "r1", "h1": "leaf1"}
    assert snapshot.cluster.hosts >= {"h0", "h1", "h9"}
    rails = rail_optimised(hosts=8, rails=2, spines=2, pods=2)
    leaf_of = reader(tmp_path, topology=rails).survey(seconds(10)).cluster.leaf_of
    assert leaf_of["h0"] == leaf_of["h1"] != leaf_of["h7"]


def test_checkpoint_is_asked_for_on_the_layout_that_the_job_will_have_by_its_first_name(tmp_path: Path) -> None:
    hints = {"*": JobHint(layout=Layout(tensor=8, replicas=8))}
    snapshot = reader(tmp_path, hints=hints).read(incident(crash()), seconds(10))
    assert snapshot.job.resume_smaller is not None
    assert snapshot.job.resume_smaller.form == f"dcp on {Layout(tensor=8, replicas=7)}"
    assert snapshot.job.save_every_s == 600.0
    found = reader(tmp_path, hints={"first": JobHint(weight=3.0)}, names_of=lambda job: (job, "first"))
    snapshot = found.read(incident(crash()), seconds(10))
    assert (snapshot.job.weight, snapshot.job.resume) == (3.0, Resume("/ckpt/first", "dcp", 60.0, 5.0))


def test_job_is_over_when_the_controller_says_so_and_not_when_it_has_never_heard_of_it(tmp_path: Path) -> None:
    found = reader(tmp_path)
    assert not found.is_over("train")
    assert not found.is_over("nobody")
    controller = FakeController(tmp_path / "cluster.json")
    controller.change(jobs={"train": controller.world.jobs["train"] | {"state": "ended"}})
    assert found.is_over("train")


def test_failures_that_were_seen_replace_those_of_the_fleet_unless_little_was_watched(tmp_path: Path) -> None:
    seen = find_evidence({"h3": 3}, dict.fromkeys(NODES, 30.0))
    snapshot = reader(tmp_path, evidence=lambda now_ns: seen).read(incident(crash()), seconds(10))
    assert snapshot.cluster.failures_per_node_day == pytest.approx(0.01)
    assert snapshot.cluster.failures_of["h3"] > snapshot.cluster.failures_of["h4"]
    assert snapshot.cluster.failure_rate == seen.rate
    assert find_evidence({"h3": 1}, {"h3": 20.0, "h4": 9.0}) == Evidence()
    found = find_evidence({"h3": 3}, dict.fromkeys(("h3", "h4", "h5"), 25.0))
    assert found.by_node["h3"] == pytest.approx(4 * found.by_node["h4"])


def insert(store: Store, name: str, rows: Sequence[HostRecord], token: str) -> None:
    store.insert(TABLE_BY_NAME[name], rows_of(TABLE_BY_NAME[name], list(rows)), token=token)


def test_telemetry_says_which_gpus_jobs_have_and_what_happened(tmp_path: Path, embedded_store: Store) -> None:
    for name, hosts in (("train", ["h3", "h3", "h5"]), ("chat", ["h8", "h8"])):
        members = [make(Comm, job=name, attempt=0, host=host, rank=at, gpu=at % 2) for at, host in enumerate(hosts)]
        stats = [make(OpStat, job=name, attempt=0, host=hosts[0], rank=0, ts_ns=seconds(5))]
        insert(embedded_store, "comms", members, f"c{name}")
        insert(embedded_store, "op_stats", stats, f"o{name}")
    told = [event("xid", "Xid 79", host="h3"), event("xid", "Xid 31", host="h5"), event("link_up", severity="info")]
    insert(embedded_store, "events", told, "events")
    hints = {"chat": JobHint(throughput={1: 7.0}), "*": JobHint()}
    found = reader(tmp_path, embedded_store, hints=hints)
    snapshot = found.read(incident(crash()), seconds(10))
    assert (snapshot.job.nodes, snapshot.job.gpus) == (("h3", "h5"), 3)
    assert [each.message for each in snapshot.events] == ["Xid 79"]
    assert snapshot.job.age_s is not None
    seat = found.read(incident(crash(component="rank:2")), seconds(10)).seat
    assert (seat, snapshot.seat) == ("gpu:h5/0", None)
    assert [each.job for each in snapshot.others] == ["chat"]
    view = found.survey(seconds(10))
    jobs = [(job.job, job.nodes, job.gpus) for job in view.jobs]
    assert jobs == [("chat", ("h8",), 2), ("train", ("h3", "h5"), 3)]
    assert dict(view.jobs[0].throughput) == {1: 7.0}
    assert view.cluster.spares == ("h9",), "h3 and h8 are held"


def test_hosts_that_tell_of_a_job_which_runs_elsewhere_are_strangers(tmp_path: Path, embedded_store: Store) -> None:
    hosts = ("h3", "h8", "rogue")  # the job is on h0 to h7
    members = [make(Comm, job="train", attempt=0, host=host, rank=rank) for rank, host in enumerate(hosts)]
    insert(embedded_store, "comms", members, "c")
    found, controller = reader(tmp_path, embedded_store), FakeController(tmp_path / "cluster.json")

    def strangers() -> tuple[str, ...]:
        return found.read(incident(crash()), seconds(10)).job.strangers

    assert strangers() == ("h8", "rogue")
    controller.change(jobs={})
    assert strangers() == ("rogue",), "a controller that does not know the job knows its nodes"
    controller.change(is_down=True)
    assert strangers() == ()


def test_hosts_with_their_domain_are_the_controller_s_nodes(tmp_path: Path, embedded_store: Store) -> None:
    hosts = [f"{name}.site.example" for name in ("h3", "h8")]
    members = [make(Comm, job="train", attempt=0, host=host, rank=rank) for rank, host in enumerate(hosts)]
    told = [make(OpStat, job="train", attempt=0, host=host, ts_ns=seconds(0)) for host in hosts]
    insert(embedded_store, "comms", members, "c")
    insert(embedded_store, "op_stats", told, "o")
    found, controller = reader(tmp_path, embedded_store), FakeController(tmp_path / "cluster.json")
    snapshot = found.read(incident(crash()), seconds(10))
    assert snapshot.job.strangers == ("h8.site.example",), "h3 is the job's, h8 is not"
    assert {node.name for node in snapshot.nodes or ()} == {*hosts, *NODES} - {"h3", "h8"}
    assert snapshot.cluster.spares == ("h9",), "h8 is held under its long name"
    found = reader(tmp_path, embedded_store, cluster=ClusterFacts(spares=("h9.site.example",)))
    controller.mark(h9="d0")
    snapshot = found.read(incident(crash()), seconds(10))
    assert snapshot.cluster.spares == (), "h9 is isolated under its short name"
    members = [make(Comm, job="train", attempt=0, host="h3.other.example", rank=2)]
    insert(embedded_store, "comms", members, "c2")
    snapshot = reader(tmp_path, embedded_store).read(incident(crash()), seconds(10))
    assert snapshot.job.strangers == ("h3.other.example", *hosts), "h3 may be either of two"


DAY_NS = 86_400 * NS_PER_S


def test_only_what_stopped_a_job_on_a_watched_host_counts(embedded_store: Store, control: ControlDatabase) -> None:
    beats = [
        make(Agent, host=host, ts_ns=T0 + day * DAY_NS - beat * NS_PER_S)
        for host in ("h3", "h4")
        for day in range(1, 21)
        for beat in (5, 65)
    ]
    insert(embedded_store, "agents", beats, "agents")
    faults = [
        incident(crash(), name="i1"),
        incident(crash(component="gpu:h3/1", fault_class="noncomm_hang"), name="i2"),
        incident(verdict(), name="i3"),  # slow: the job went on
        incident(crash(component="host:elsewhere"), name="i4"),
    ]
    save_incidents(control, faults, None)
    found = EvidenceReader(embedded_store, control).read(T0 + 20 * DAY_NS)
    assert found.rate is not None
    assert (found.rate.failures, found.rate.node_days) == (2, 40.0)
    assert found.by_node["h3"] > found.by_node["h4"]
    assert EvidenceReader(None, control).read(T0) == Evidence()


def run_job(store: Store, name: str, began_s: float, last_s: float, gpu: int = 0, **comm: object) -> None:
    """Tell of a job that had a communicator and operations on four hosts from then to then."""
    who = [{"job": name, "host": f"h{rank}", "rank": rank} for rank in range(4)]
    members = [make(Comm, **each, gpu=gpu, init_ns=seconds(began_s), **comm) for each in who]
    told = [make(OpStat, **each, ts_ns=seconds(at_s)) for each in who for at_s in (began_s, last_s)]
    insert(store, "comms", members, f"c{name}")
    insert(store, "op_stats", told, f"o{name}")


def test_job_that_ended_frees_its_nodes_though_no_scheduler_says_so(tmp_path: Path, embedded_store: Store) -> None:
    found = reader(tmp_path, embedded_store, controller=None)
    run_job(embedded_store, "killed", 0, 20)
    run_job(embedded_store, "tidy", 25, 30, destroy_ns=seconds(31))
    assert not found.survey(seconds(32)).jobs, "another took the place of one, and the other's communicators are gone"
    run_job(embedded_store, "next", 33, 40)
    run_job(embedded_store, "beside", 34, 40, gpu=1)
    view = found.survey(seconds(45))
    assert [(job.job, job.nodes) for job in view.jobs] == [
        (name, ("h0", "h1", "h2", "h3")) for name in ("beside", "next")
    ]
    killed = found.read(incident(crash()).model_copy(update={"job": "killed"}), seconds(45))
    assert killed.job.is_over
    assert not found.read(incident(crash()).model_copy(update={"job": "next"}), seconds(45)).job.is_over
