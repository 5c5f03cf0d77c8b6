"""A fake Kubernetes that is served, a client of the real library for it, and a fake Slurm with a job."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lockstep.errors import NotPresent
from planner.controllers.kubernetes_api import quiet_client
from tests.planner.controllers.fake_kubernetes import FakeKubernetes, fill, serve
from tests.planner.controllers.fake_slurm import NODES, RUNNING, SCRIPT, FakeSlurm
from tests.testbed.slurm import QUICK, LocalSlurm, local_slurm

KILL_WAIT_S = 4  # of the real Slurm


@pytest.fixture
def fake() -> FakeKubernetes:
    fake = FakeKubernetes()
    fill(fake)
    return fake


@pytest.fixture
def api(fake: FakeKubernetes) -> Iterator[Any]:
    client = pytest.importorskip("kubernetes.client", reason="needs the extra lockstep[kubernetes]")
    with serve(fake) as url:
        made = quiet_client(client.Configuration(host=url))
        yield made
        made.rest_client.close()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSlurm]:
    """A real Slurm for all tests. Its slurmrestd refuses to run as root or as SlurmUser: only root can start it."""
    is_root = os.geteuid() == 0
    folder = tmp_path_factory.mktemp("slurm")
    try:
        with local_slurm(folder, extra=QUICK, rest=is_root, kill_wait_s=KILL_WAIT_S) as slurm:
            if is_root:
                slurm.start_rest("local", auth="local")
            yield slurm
    except NotPresent as missing:
        pytest.skip(str(missing))


@pytest.fixture
def slurm(tmp_path: Path) -> FakeSlurm:
    """A Slurm with the four nodes of the recording, in which job 2 runs."""
    fake = FakeSlurm(tmp_path / "slurm").install()
    fake.say("scontrol-show-node", "".join(NODES))
    fake.say("scontrol-show-job", RUNNING)
    fake.say("scontrol-write-batch_script", SCRIPT)
    fake.say("scancel", do="sed -i s/JobState=RUNNING/JobState=CANCELLED/ scontrol-show-job.out")
    fake.say("sbatch", "17\n", do='cat > script; env > environment; echo "17|PENDING|lockstep d-18" > squeue.out')
    return fake
