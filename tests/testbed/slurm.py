"""A real Slurm on this machine alone: one slurmctld, some slurmd and their own munged, in a directory, on loopback.

    with local_slurm(Path("/tmp/slurm"), nodes=4) as slurm:
        subprocess.run(["sinfo"], env=os.environ | slurm.environment)

All nodes share this host: a job's processes are real, its isolation (control groups, pinning) is not. The daemons are
those of Debian's and Ubuntu's packages; the system's own slurm.conf and munge key are never read. With `rest`, there
is a slurmrestd too, which takes JSON web tokens; it runs as nobody, since it refuses to run as root or as SlurmUser.
"""

import getpass
import os
import secrets
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from lockstep.errors import LockstepError, NotPresent
from tests.testbed.services import free_port, wait_until

_TOOLS = ("munged", "slurmctld", "slurmd", "scontrol", "sbatch", "scancel", "squeue", "sinfo")
_REST_TOOLS = ("slurmrestd", "setpriv")
_PARTITION = "debug"
_START_TIMEOUT_S = 600
_STOP_TIMEOUT_S = 10
# Requeued jobs wait for this long (120 s unless told), so that no credential of their first attempt is still valid.
_CRED_EXPIRE_S = 5
# New jobs are otherwise looked at every 3 s, so that many are placed together, and waiting ones every 60 s.
QUICK = "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1"

_CONFIG = """\
ClusterName=lockstep
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={door}/munge.socket,cred_expire={cred_expire_s}
SlurmUser={user}
SlurmdUser={user}
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool/%n
SlurmctldPidFile={home}/slurmctld.pid
SlurmdPidFile={home}/slurmd.%n.pid
SlurmctldLogFile={home}/slurmctld.log
SlurmdLogFile={home}/slurmd.%n.log
# No control groups and no pinning: several nodes share one host, which may be a container.
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
ReturnToService=2
KillWait={kill_wait_s}
{extra}
{nodes}
PartitionName={partition} Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class LocalSlurm:
    home: Path  # state, spool and logs
    door: Path  # what every user of this machine may reach: the configuration and munged's socket
    nodes: tuple[str, ...]
    _daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def rest(self) -> str:
        return f"unix://{self.door}/rest/socket"

    @property
    def environment(self) -> Mapping[str, str]:
        """Return what Slurm's commands need to find this cluster."""
        return {"SLURM_CONF": str(self.door / "slurm.conf")}

    def call(self, *words: str) -> str:
        """Run one of Slurm's commands and return what it says; LockstepError when it fails."""
        done = subprocess.run(
            words, env=os.environ | dict(self.environment), capture_output=True, text=True, check=False, timeout=600
        )
        if done.returncode:
            raise LockstepError(f"{' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
        return done.stdout

    def start(self, daemon: str, *words: str) -> None:
        """Start one daemon in the foreground, as a child of ours."""
        with open(self.home / f"{daemon}.out", "ab") as out:
            self._daemons[daemon] = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                env=os.environ | dict(self.environment),
                start_new_session=True,
            )

    def start_rest(self, name: str = "rest", auth: str = "jwt") -> None:
        """Start a slurmrestd as nobody, and return when it listens; its plugins for slurmdbd would need one."""
        folder = self.door / name
        folder.mkdir()
        shutil.chown(folder, "nobody")
        # With munge, which is there too, slurmrestd would answer in its own name whatever the token says.
        token = ["env", "SLURM_JWT=daemon"] if auth == "jwt" else []
        who = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
        plugins = ["-s", "openapi/v0.0.38,openapi/v0.0.37", "-a", f"rest_auth/{auth}"]
        self.start(name, *token, *who, "slurmrestd", *plugins, f"unix:{folder}/socket")
        self.wait_until((folder / "socket").exists, "slurmrestd listens")

    def make_token(self, user: str, life_s: int = 600) -> str:
        """Return a JSON web token for slurmrestd, as `scontrol token` prints it."""
        return self.call("scontrol", "token", f"username={user}", f"lifespan={life_s}")

    def start_controller(self) -> None:
        self.start("slurmctld", "slurmctld", "-D")
        self.wait_until(lambda: "is UP" in self.call("scontrol", "ping"), "slurmctld answers")

    def send_signal(self, daemon: str, number: signal.Signals) -> None:
        self._daemons[daemon].send_signal(number)

    def stop(self, daemon: str) -> None:
        """End one daemon, by force when it does not end by itself."""
        process = self._daemons.pop(daemon)
        process.terminate()
        try:
            process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def stop_all(self) -> None:
        """Cancel what runs, so that no step outlives its slurmd, and end the daemons, munged last."""
        try:
            if "slurmctld" in self._daemons:
                self.call("scancel", f"--partition={_PARTITION}")
                self.wait_until(lambda: not self.call("squeue", "--noheader"), "the last job has ended")
        finally:
            for daemon in reversed(list(self._daemons)):
                self.stop(daemon)

    def wait_until(self, is_so: Callable[[], bool], what: str) -> None:
        """Return as soon as it is so; LockstepError when it is not in time, or when a daemon has died."""

        def is_so_yet() -> bool:
            self.check_alive()
            try:
                return is_so()
            except LockstepError:
                return False  # slurmctld does not answer yet

        wait_until(is_so_yet, f"{what}; see the logs in {self.home}", _START_TIMEOUT_S)

    def check_alive(self) -> None:
        """Raise LockstepError with the last words of a daemon that has ended by itself."""
        for daemon, process in self._daemons.items():
            if process.poll() is not None:
                last_words = (self.home / f"{daemon}.out").read_text(errors="replace")[-500:].strip()
                raise LockstepError(f"{daemon} ended with {process.returncode}: {last_words}")


@contextmanager
def local_slurm(
    directory: Path, nodes: int | Sequence[str] = 4, extra: str = "", rest: bool = False, kill_wait_s: int = 2
) -> Iterator[LocalSlurm]:
    """Start a Slurm in a directory of its own, and end it; NotPresent where it is not installed.

    `nodes` are their names, or how many there are: n1, n2, …; `extra` are further lines of slurm.conf, such as QUICK;
    `rest` starts a slurmrestd too, which root alone can do.
    """
    check_installed(rest)
    names = tuple([f"n{number}" for number in range(1, nodes + 1)] if isinstance(nodes, int) else nodes)
    with ExitStack() as stack:
        # Straight below /tmp: munged insists that every user can reach its socket, whose path has at most 107 bytes.
        door = Path(stack.enter_context(TemporaryDirectory(prefix="lockstep-slurm-", dir="/tmp")))
        slurm = LocalSlurm(directory.resolve(), door, names)
        _write_home(slurm, extra + (_write_token_key(directory) if rest else ""), kill_wait_s)
        stack.callback(slurm.stop_all)
        _start_munge(slurm)
        slurm.start_controller()
        for node in slurm.nodes:
            slurm.start(node, "slurmd", "-D", "-N", node)
        idle = ("sinfo", "--noheader", "--Node", "--states=idle", "--responding", "--format=%N")
        slurm.wait_until(lambda: slurm.call(*idle).split() == list(names), f"{len(names)} nodes are idle")
        if rest:
            slurm.start_rest()
        yield slurm


def check_installed(rest: bool = False) -> None:
    """Raise NotPresent, with the packages to install, where something of Slurm is missing."""
    missing = [tool for tool in (*_TOOLS, *(_REST_TOOLS if rest else ())) if not shutil.which(tool)]
    if missing:
        packages = "munge, slurm-client, slurmctld and slurmd"
        packages += ", slurmrestd and slurm-wlm-jwt-plugin" if rest else ""
        raise NotPresent(f"a local Slurm needs {', '.join(missing)}: install the packages {packages}")


def _write_home(slurm: LocalSlurm, extra: str, kill_wait_s: int) -> None:
    home = slurm.home
    for directory in (home / "state", *(home / "spool" / node for node in slurm.nodes)):
        directory.mkdir(parents=True, exist_ok=True)
    slurm.door.chmod(0o755)
    ports = ",".join(str(free_port()) for _ in slurm.nodes)
    host = socket.gethostname().partition(".")[0]
    text = _CONFIG.format(
        home=home,
        door=slurm.door,
        host=host,
        user=getpass.getuser(),
        controller_port=free_port(),
        cred_expire_s=_CRED_EXPIRE_S,
        kill_wait_s=kill_wait_s,
        partition=_PARTITION,
        extra=extra,
        nodes=f"NodeName={','.join(slurm.nodes)} NodeAddr=127.0.0.1 NodeHostname={host} Port=[{ports}] CPUs=1",
    )
    (slurm.door / "slurm.conf").write_text(text)


def _write_token_key(home: Path) -> str:
    """Write the key with which tokens are signed, and return the lines of slurm.conf that name it."""
    home.mkdir(parents=True, exist_ok=True)
    key = home.resolve() / "jwt.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(32))
    return f"\nAuthAltTypes=auth/jwt\nAuthAltParameters=jwt_key={key}\n"


def _start_munge(slurm: LocalSlurm) -> None:
    """Start a munged with a key of its own: Slurm's usual way to know who asks."""
    home = slurm.home
    key = home / "munge.key"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(128))
    slurm.start(
        "munged",
        "munged",
        "--foreground",
        "--force",  # its files lie where only their owner comes, below directories that it does not know
        f"--socket={slurm.door}/munge.socket",
        f"--key-file={key}",
        f"--pid-file={home}/munged.pid",
        f"--log-file={home}/munged.log",
        f"--seed-file={home}/munged.seed",
        "--num-threads=2",
    )
    slurm.wait_until((slurm.door / "munge.socket").exists, "munged answers")
