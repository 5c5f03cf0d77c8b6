"""The torchrun controller on a real torchrun: three agents, one stopped, the others meet again, and it comes back."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from planner.controllers.protocol import Restart
from planner.controllers.running import Deadline
from planner.controllers.torchrun import TorchrunController, TorchrunOptions
from planner.controllers.torchrun_agents import Agents, Reach
from tests.testbed.services import free_port, wait_until

pytestmark = pytest.mark.slow

NODES = ("n1", "n2", "n3")
MEETING_S = 120  # an agent imports torch first, which takes half a minute on a loaded machine
MOST_RESTARTS = 20  # a worker that still sees the round before ends once more than it must
# As in training, where a collective breaks: a worker that misses one of its peers ends, and its agent meets anew.
WORKER = """
import os, sys, time
from pathlib import Path

here, rank, world = Path(sys.argv[1]), int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
(here / f"{rank}.new").write_text(f"{os.getpid()} {world}")
(here / f"{rank}.new").rename(here / f"rank-{rank}")

def find_peers():
    told = [(here / f"rank-{peer}").read_text().split() for peer in range(world) if (here / f"rank-{peer}").exists()]
    return [pid for pid, size in told if int(size) == world and Path(f"/proc/{pid}").exists()]

peers = []
while len(peers) < world:
    time.sleep(0.05)
    peers = find_peers()
resume = os.environ.get("LOCKSTEP_RESUME_FROM", "scratch")
with open(here / "rounds", "a") as rounds:
    print(rank, world, os.environ["TORCHELASTIC_RESTART_COUNT"], resume, file=rounds)
while all(Path(f"/proc/{pid}").exists() for pid in peers):
    time.sleep(0.05)
sys.exit(1)
"""


@pytest.fixture
def options(tmp_path: Path) -> Iterator[TorchrunOptions]:
    (tmp_path / "worker.py").write_text(WORKER)
    options = TorchrunOptions(
        "llm-7", NODES, reach_of(tmp_path), tmp_path / "state", rendezvous_node="n1", timeout_s=120
    )
    yield options
    agents = Agents("llm-7", options.reach, Deadline(60))
    for node in NODES:
        (tmp_path / f"{node}.dead").unlink(missing_ok=True)
    agents.each(NODES, agents.stop)
    wait_until(lambda: not agents.find_all(NODES), "all agents have ended")


def reach_of(directory: Path) -> Reach:
    """Return how three agents on this host are started; each node has a port for the store; no meeting waits long.

    A node whose file `dead` is there answers to nobody.
    """
    ports = " ".join(f"{node}) port={free_port()};;" for node in NODES)
    command = [
        *(sys.executable, "-m", "torch.distributed.run"),
        *("--nnodes=1:3", "--nproc-per-node=1", f"--max-restarts={MOST_RESTARTS}", "--monitor-interval=0.1"),
        *("--rdzv-id=llm-7", "--rdzv-backend=c10d"),
    ]
    words = shlex.join(command)
    where = "--rdzv-endpoint=127.0.0.1:$port"
    conf = "--rdzv-conf=last_call_timeout=2,is_host=$([ $node = $rendezvous ] && echo 1 || echo 0)"
    script = shlex.join([str(directory / "worker.py"), str(directory)])
    start = f"{words} {where} {conf} {script} </dev/null >>{directory}/$node.log 2>&1 & echo $! > $pid_file"
    launch = f"case $rendezvous in {ports} esac\n{start}"
    lives = ("sh", "-c", f'[ ! -e {directory}/"$0".dead ] && exec "$@"', "{node}")
    return Reach(str(directory / "{node}.pid"), launch, lives, {"OMP_NUM_THREADS": "1", "LOGLEVEL": "INFO"})


def read_rounds(directory: Path) -> list[tuple[int, int, str]]:
    """Return world size, restart count and checkpoint of each round in which all ranks met, oldest first."""
    path = directory / "rounds"
    lines = [line.split() for line in path.read_text().splitlines()] if path.exists() else []
    return [(int(world), int(count), resume) for rank, world, count, resume in lines if rank == "0"]


def wait_for_world(directory: Path, world: int, rounds: int) -> int:
    """Wait until a later round than the first `rounds` has so many ranks; return how many rounds there are then."""
    wait_until(
        lambda: any(size == world for size, _, _ in read_rounds(directory)[rounds:]),
        f"{world} ranks meet after round {rounds}; see the logs in {directory}",
        MEETING_S,
    )
    return len(read_rounds(directory))


def test_nodes_leave_and_come_back_also_the_one_where_agents_meet(options: TorchrunOptions, tmp_path: Path) -> None:
    controller = TorchrunController(options)
    begun = controller.restart(Restart("d-0", "llm-7"))
    assert begun.outcome == "done", begun
    rounds = wait_for_world(tmp_path, 3, 0)
    report = controller.reattempt("llm-7", "d-1")
    assert report.outcome == "done", report
    rounds = wait_for_world(tmp_path, 3, rounds)
    assert controller.reattempt("llm-7", "d-1").outcome == "already"
    seen = controller.job("llm-7")
    assert seen is not None
    assert seen.restarts >= 1
    assert controller.isolate("n3", "d-2", "NIC is slow").outcome == "done"
    rounds = wait_for_world(tmp_path, 2, rounds)
    seen = controller.job("llm-7")
    assert seen is not None
    assert (seen.state, seen.nodes, seen.mark) == ("running", ("n1", "n2"), "d-0")
    assert controller.release("n3", "d-2").what == "the agent of n3 runs again"
    rounds = wait_for_world(tmp_path, 3, rounds)
    kill_host(options, tmp_path, "n1")
    isolated = controller.isolate("n1", "d-3", "no power")
    assert isolated.what == "n1, where the agents meet, takes no part in the next start: no power"
    order = Restart("d-3", "llm-7", exclude=("n1",), checkpoint="/ckpt/8")
    assert controller.restart(order).what == "job llm-7 is started again on n2, n3"
    rounds = wait_for_world(tmp_path, 2, rounds)
    assert read_rounds(tmp_path)[-1][2] == "/ckpt/8"
    (tmp_path / "n1.dead").unlink()
    assert controller.release("n1", "d-3").what == "the agent of n1 runs again"
    wait_for_world(tmp_path, 3, rounds)


def kill_host(options: TorchrunOptions, directory: Path, node: str) -> None:
    """Kill a node's agent with its workers, and let the node answer to nobody any more."""
    agents = Agents("llm-7", options.reach, Deadline(60))
    agent = agents.find(node)
    assert agent is not None
    for pid in (agent.pid, *(worker.pid for worker in agents.find_workers(node))):
        os.kill(pid, signal.SIGKILL)
    (directory / f"{node}.dead").touch()
