"""A local Slurm runs jobs over all its nodes, stands beside another one, and leaves no process behind."""

from contextlib import ExitStack
from pathlib import Path

import pytest

from lockstep.errors import NotPresent
from tests.testbed.slurm import LocalSlurm, check_installed, local_slurm

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _needs_slurm() -> None:
    try:
        check_installed()
    except NotPresent as missing:
        pytest.skip(str(missing))


def find_processes(slurm: LocalSlurm) -> list[str]:
    """Return the processes that belong to a Slurm, by their environment or command: daemons, steps and jobs."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = (process / "environ").read_bytes() + (process / "cmdline").read_bytes()
        except OSError:
            continue  # gone meanwhile, or not ours to read
        if str(slurm.door).encode() in told:
            found.append(f"{process.name}: {told.decode(errors='replace')[-200:]}")
    return found


def ask_where(slurm: LocalSlurm) -> list[str]:
    """Return the nodes on which a job over all of them ran."""
    words = slurm.call("srun", f"--nodes={len(slurm.nodes)}", "--chdir=/", "printenv", "SLURMD_NODENAME")
    return sorted(words.split())


def test_a_job_runs_on_all_nodes_and_nothing_is_left(tmp_path: Path) -> None:
    with local_slurm(tmp_path / "a", nodes=3) as slurm:
        assert ask_where(slurm) == ["n1", "n2", "n3"]
        slurm.call("sbatch", "--nodes=3", "--chdir=/", "--output=/dev/null", "--wrap=srun sleep 600")
        assert len(find_processes(slurm)) >= 5, "munged, slurmctld and three slurmd"
    assert find_processes(slurm) == []
    assert not slurm.door.exists()


def test_two_clusters_stand_side_by_side(tmp_path: Path) -> None:
    with local_slurm(tmp_path / "a", nodes=1) as one, local_slurm(tmp_path / "b", nodes=2) as other:
        one.call("scontrol", "update", "NodeName=n1", "State=DRAIN", "Reason=test")
        assert ask_where(other) == ["n1", "n2"]


@pytest.mark.needs_root
def test_slurmrestd_stands_beside_and_is_not_left(tmp_path: Path) -> None:
    with local_slurm(tmp_path / "a", nodes=1, rest=True) as slurm:
        assert slurm.make_token("root").startswith("SLURM_JWT=")
        assert Path(slurm.rest.removeprefix("unix://")).is_socket()
        assert any("slurmrestd" in process for process in find_processes(slurm))
    assert find_processes(slurm) == []


def test_a_failure_inside_ends_the_cluster(tmp_path: Path) -> None:
    stack = ExitStack()
    slurm = stack.enter_context(local_slurm(tmp_path / "a", nodes=1))
    failure = KeyError("the test failed")
    assert not stack.__exit__(KeyError, failure, failure.__traceback__)
    assert find_processes(slurm) == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NotPresent, match="install the packages munge, slurm-client, slurmctld and slurmd"):
        check_installed()
    with pytest.raises(NotPresent, match="slurmd, slurmrestd and slurm-wlm-jwt-plugin"):
        check_installed(rest=True)
