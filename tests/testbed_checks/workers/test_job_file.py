"""A rank is told its own part of the job, and nothing of groups that it is not in."""

from tests.testbed.workers.job_file import write_job
from tests.testbed.workers.plan import Collective, Compute, Hop, Layout
from tests.testbed_checks.workers.jobs import plan_job


def item_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.split()[0] in ("compute", "op", "with", "second")]


def test_whole_file_of_a_rank_can_be_read_line_by_line() -> None:
    step = (Compute(2.5, noise=0.1), Collective("tp", "AllReduce", 4096, algo="TREE", channels=1))
    plan = plan_job(4, step, per_host=2, layout=Layout(tp=2, dp=2), steps=7, seed=3)
    world, tp = plan.comm_id("world", (0, 1, 2, 3)), plan.comm_id("tp", (2, 3))

    assert write_job(plan, 3, ["10.0.0.1", "10.0.0.2"]).splitlines() == [
        "rank 3 4",
        "host 0 h0",
        "host 1 h0",
        "host 2 h1",
        "host 3 h1",
        "nic eth0 10.0.0.1",
        "nic eth1 10.0.0.2",
        "sizes 131072 65536",
        "steps 7 3",
        f"comm {world:x} world 0 1 2 3",
        f"comm {tp:x} tp 2 3",
        "compute 2.5 0.1 sleep",
        "op 1 AllReduce TREE 4096 1 -1",
    ]


def test_hops_out_of_the_pipeline_are_passed_over_and_the_others_stay_in_their_group() -> None:
    step = (Hop("Send", 1, 8), Hop("Recv", -1, 8, joined=True), Compute(1), Hop("Recv", -1, 8, joined=True))
    plan = plan_job(3, step, layout=Layout(pp=3))
    files = [item_lines(write_job(plan, rank, ["a", "b"])) for rank in range(3)]

    assert files[0] == ["op 1 Send RING 8 1 1", "compute 1 0.0 sleep"]
    assert files[1] == [
        "op 1 Send RING 8 1 2",
        "with 1 Recv RING 8 1 0",
        "compute 1 0.0 sleep",
        "op 1 Recv RING 8 1 0",
    ]
    assert files[2] == ["op 1 Recv RING 8 1 1", "compute 1 0.0 sleep", "op 1 Recv RING 8 1 1"]


def test_source_ports_are_told_to_the_rank_that_sends() -> None:
    plan = plan_job(3, source_ports={("world", 1, 2, 0): 40_001, ("world", 0, 1, 2): 40_002})

    assert [line for line in write_job(plan, 2, ["a", "b"]).splitlines() if line.startswith("port")] == [
        "port 0 1 0 40001"
    ]


def test_second_mix_follows_the_first() -> None:
    plan = plan_job(2, (Compute(1),), second_step=(Compute(2), Collective("dp", "AllGather", 64)))

    assert item_lines(write_job(plan, 0, ["a", "b"])) == [
        "compute 1 0.0 sleep",
        "second",
        "compute 2 0.0 sleep",
        "op 1 AllGather RING 64 2 -1",
    ]
