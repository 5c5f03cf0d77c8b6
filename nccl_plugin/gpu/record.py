# ruff: noqa: S311, T201, TID251 -- a program for people; lockstep is not installed where there is a GPU
"""Records real PyTorch training with and without faults, every callback of NCCL: `make gpu-record`.

Jobs of three to six ranks train a small GPT (gpt.py), each rank on a host of its own, several jobs at a time. A seed
draws who is at fault, how badly and how the job is made, and which families of cases are for scoring: those go to a
folder of their own, not to be looked at while rules are made. `lockstep import nccl-callbacks` reads what is written.
What is there already is not recorded again.

Needs what `make gpu-test` needs, and PyTorch with CUDA for `--python`.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab import EVERY_CALLBACK, LabError, SharedGpu, base_environment, end_in_order, ring_folder, torch_environment
from namespaces import NETWORKS, RankNetwork
from rings import CALLBACK_KIND, NotARing, Ring, read_ring
from traces import LAST_NS, epoch_of, recording_of, write_windows

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # lockstep is not installed where there is a GPU

from importers.traces.callback_trace import RankRecording

HERE = Path(__file__).resolve().parent
NIC_BYTES_PER_S = 400_000_000
ONSET_S, TRAINED_S, HANG_S, BEFORE_S, AFTER_S = 6.0, 13.0, 5.0, 4.5, 6.0
GIVEN_UP_S, POLL_S = 38.0, 0.1

SLOW, HANG = ("noncomm_slow",), ("noncomm_hang", "comm_hang", "crash", "software")
OUTSIDE = ("nic", "dead", "starved")
HANGS = ("stop", "absent", "kernel", "dead")
MODES = ("ddp", "fsdp", "pipeline", "tensor")
# What is wrong, by kind: classes, part, and what else is as right.
TRUTHS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "gpu": (SLOW, "gpu:{host}/0", ()),
    "seventh": (SLOW, "gpu:{host}/0", ()),
    "host": (SLOW, "host:{host}", ("rank:{rank}",)),
    "loader": (SLOW, "host:{host}", ("rank:{rank}",)),
    "starved": (SLOW, "host:{host}", ("rank:{rank}",)),
    "nic": (("comm_slow",), "nic:{host}/eth0", ()),
    "stop": (HANG, "rank:{rank}", ("host:{host}", "gpu:{host}/0")),
    "absent": (HANG, "rank:{rank}", ("host:{host}", "gpu:{host}/0")),
    "kernel": (HANG, "gpu:{host}/0", ()),
    "dead": (HANG, "nic:{host}/eth0", ()),
}
FAMILIES = (
    *((mode, "") for mode in MODES),
    *((mode, kind) for kind in ("gpu", "host", "nic", "stop", "kernel") for mode in MODES),
    *((mode, kind) for kind in ("loader", "starved", "seventh", "absent", "dead") for mode in ("ddp", "fsdp")),
)


@dataclass(frozen=True)
class Case:
    """One job: what it trains, and what is done to it."""

    name: str
    mode: str
    fault: str
    ranks: int
    rank: int
    times: float  # how bad, of what gpt.py does; of a NIC how much of its rate is left
    width: int
    save_every: int
    channels: int
    seed: int
    for_scoring: bool

    @property
    def host(self) -> str:
        return f"h{self.rank}"


def draw(seed: int, takes: int) -> list[Case]:
    """Every family so many times, no two alike, in an order in which a run that is cut short has a bit of all."""
    chance = random.Random(seed)
    shuffled = chance.sample(FAMILIES, len(FAMILIES))
    scoring = {family for is_ill in (False, True) for family in [f for f in shuffled if bool(f[1]) == is_ill][::2]}
    return [
        _draw_case(chance, mode, fault, take, for_scoring=(mode, fault) in scoring)
        for take in range(2 * takes)
        for mode, fault in shuffled
        if take < takes or not fault  # silence is worth twice as many
    ]


def _draw_case(chance: random.Random, mode: str, fault: str, take: int, *, for_scoring: bool) -> Case:
    ranks = chance.choice((3, 4, 5, 6)) if mode in ("ddp", "fsdp") else 4
    return Case(
        name=f"{mode}{ranks}_{fault or 'healthy'}_{take}",
        mode=mode,
        fault=fault,
        ranks=ranks,
        rank=chance.randrange(ranks) if fault else -1,
        times=chance.choice((0.2, 0.35, 0.5)) if fault == "nic" else chance.choice((0.4, 0.7, 1.0)),
        width=chance.choice((192, 256, 320)) * (1 + (mode == "pipeline")),
        save_every=chance.choice((6, 15, 45)),
        channels=chance.choice((1, 1, 2)),
        seed=chance.randrange(1 << 20),
        for_scoring=for_scoring,
    )


def truth_of(case: Case, onset_ns: int, epoch_ns: int) -> list[dict[str, object]]:
    """What is wrong from when on; empty when nothing is."""
    if not case.fault:
        return []
    classes, component, accept = TRUTHS[case.fault]
    names = [name.format(host=case.host, rank=case.rank) for name in (component, *accept)]
    after = (case.rank + 1) % case.ranks
    pairs = [f"link:h{min(case.rank, after)}/eth0--h{max(case.rank, after)}/eth0"] if case.fault == "nic" else []
    truth: dict[str, object] = {"class": list(classes), "component": names[0], "accept": names[1:], "partial": pairs}
    truth |= {"ranks": [case.rank], "onset_mono_ns": onset_ns - epoch_ns, "onset_unix_ns": onset_ns}
    return [truth | ({"side": "tx"} if case.fault == "nic" else {})]


class Follower:
    """Keeps the callbacks of one rank: its rings go round within seconds."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._records: list[bytes] = []
        self._heads: list[int] = []
        self.ring: Ring | None = None
        self.lost = 0

    def read(self) -> None:
        """Take what is new."""
        try:
            ring = read_ring(next(self._folder.glob("*.ring")))
        except (StopIteration, NotARing):  # not there yet
            return
        section = ring.sections
        room = section["records"].count // section["rings"].count
        heads = ring.heads()
        before = self._heads or [0] * len(heads)
        self.lost += sum(max(0, now - then - room) for now, then in zip(heads, before, strict=True))
        self._records += ring.records(CALLBACK_KIND, before)
        self._heads, self.ring = heads, ring

    def recording(self, rank: int) -> RankRecording:
        if self.ring is None:
            raise NotARing(f"{self._folder} has no ring file")
        return recording_of(rank, self.ring, b"".join(self._records))


class Job:
    """One case in namespaces of its own, from its first process to its last."""

    def __init__(self, case: Case, place: Path, network: RankNetwork, gpu: dict[str, str], python: str) -> None:
        self._case, self._place, self._network = case, place, network
        self._busy: list[subprocess.Popen[bytes]] = []
        self._followers = [Follower(ring_folder(place, rank)) for rank in range(case.ranks)]
        inside, lasts_s = case.fault and case.fault not in OUTSIDE, HANG_S + 1.5 if case.fault in HANGS else 1e9
        words = ["--fault", f"{case.fault}:{case.rank}:{ONSET_S}:{lasts_s}:{case.times}"] if inside else []
        words += ["--seconds", str(TRAINED_S), "--width", str(case.width), "--seed", str(case.seed)]
        words += ["--save-every", str(case.save_every)]
        for rank in range(case.ranks):
            network.prepare_limit(rank, NIC_BYTES_PER_S).communicate(b"\n", timeout=20)
        command = [python, str(HERE / "gpt.py"), case.mode, *words]
        self._processes = [self._start(command, rank, gpu) for rank in range(case.ranks)]

    def _start(self, command: Sequence[str], rank: int, gpu: dict[str, str]) -> "subprocess.Popen[bytes]":
        rings = ring_folder(self._place, rank)
        rings.mkdir(parents=True)
        environment = base_environment() | gpu | EVERY_CALLBACK
        environment |= torch_environment(
            self._case.name, rank, self._case.ranks, rank, rings, f"{NETWORKS['eth0']}.1:29500"
        )
        environment |= {
            "NCCL_HOSTID": f"{self._case.name}-{rank}",
            "NCCL_MAX_NCHANNELS": str(self._case.channels),
        }
        with open(self._file(rank), "wb") as log:
            before = self._network.command(rank)
            return subprocess.Popen([*before, *command], env=environment, stdout=log, stderr=subprocess.STDOUT)

    def _file(self, rank: int) -> Path:
        return self._place / f"out.{rank}"

    def run(self, out: Path) -> str:
        """Wait for its end, being at fault from outside where that is asked for; write the trace, say what it has."""
        deadline = time.monotonic() + GIVEN_UP_S
        onset_ns, hung_ns = 0, 0
        os.setpriority(os.PRIO_PROCESS, 0, -10)  # the ranks have begun; rings go round while we are not there
        while any(process.poll() is None for process in self._processes) and time.monotonic() < deadline:
            onset_ns = onset_ns or self._onset()
            if not hung_ns:
                for follower in self._followers:
                    follower.read()
            if self._case.fault in HANGS and onset_ns and not hung_ns and time.time_ns() > onset_ns + HANG_S * 1e9:
                hung_ns = time.time_ns()
                self._heal()
            time.sleep(POLL_S)
        self._end()
        codes = [process.returncode for process in self._processes]
        lost = sum(follower.lost for follower in self._followers)
        is_complete = not lost and bool(onset_ns) == bool(self._case.fault)
        if not is_complete or (self._case.fault in HANGS) != bool(hung_ns):
            said = self._file(0).read_text(errors="replace")[-600:]
            return f"{self._case.name}: FAILED with {codes}, {lost} records overwritten: {said}"
        return f"{self._write(out, onset_ns, hung_ns)}, exit codes {codes}"

    def _onset(self) -> int:
        """When the fault began, 0 before that; one from outside is begun here."""
        if not self._case.fault:
            return 0
        if self._case.fault not in OUTSIDE:
            return self._said(self._case.rank, "fault")
        trained_ns = self._said(self._case.rank, "training")
        if not trained_ns or time.time_ns() < trained_ns + ONSET_S * 1e9:
            return 0
        self._act()
        return time.time_ns()

    def _act(self) -> None:
        culprit = self._case.rank
        if self._case.fault == "nic":
            limit = int(NIC_BYTES_PER_S * self._case.times)
            self._network.prepare_limit(culprit, limit).communicate(b"\n", timeout=20)
        elif self._case.fault == "dead":
            self._network.cut(culprit)
        else:
            core, pid = str(culprit), str(self._processes[culprit].pid)  # nsenter becomes what it starts
            subprocess.run(["taskset", "-a", "-p", "-c", core, pid], check=True, capture_output=True)
            loop = ["taskset", "-c", core, "sh", "-c", "while :; do :; done"]
            self._busy = [subprocess.Popen(loop) for _ in range(2 + int(4 * self._case.times))]

    def _heal(self) -> None:
        if self._case.fault == "stop":
            self._processes[self._case.rank].send_signal(signal.SIGCONT)
        elif self._case.fault == "dead":
            self._network.mend(self._case.rank)

    def _said(self, rank: int, event: str) -> int:
        lines = self._file(rank).read_text(errors="replace").splitlines()
        said = [json.loads(line) for line in lines if line.startswith('{"unix_ns"') and line.endswith("}")]
        return next((int(line["unix_ns"]) for line in said if line["event"] == event), 0)

    def _end(self) -> None:
        for busy in self._busy:
            busy.kill()
            busy.wait()
        end_in_order(self._processes, (signal.SIGCONT, signal.SIGTERM), 6)

    def _write(self, out: Path, onset_ns: int, hung_ns: int) -> str:
        recordings = [follower.recording(rank) for rank, follower in enumerate(self._followers)]
        middle_ns = onset_ns or self._said(0, "training") + int(ONSET_S * 1e9)
        window = (middle_ns - int(BEFORE_S * 1e9), LAST_NS if hung_ns else middle_ns + int(AFTER_S * 1e9))
        path = path_of(self._case, out)
        path.parent.mkdir(parents=True, exist_ok=True)
        ring = self._followers[0].ring
        assert ring is not None
        line = about(self._case, ring, epoch_of(recordings), onset_ns, hung_ns)
        return write_windows(path, line, recordings, [window] * len(recordings))


def path_of(case: Case, out: Path) -> Path:
    return out / ("scoring" if case.for_scoring else "tuning") / f"{case.name}.jsonl.xz"


def about(case: Case, ring: Ring, epoch_ns: int, onset_ns: int, hung_ns: int) -> dict[str, object]:
    """The first line: what ran, what was done to it, and what an analysis should find."""
    sizes = {"pipeline": "pp", "tensor": "tp"}.get(case.mode, "dp")
    line: dict[str, object] = {
        "run": case.name,
        "nccl": ring.nccl_release,
        "ranks": case.ranks,
        "op": f"PyTorch, {case.mode}, a GPT of width {case.width}, {case.channels} channels",
        "fault": f"{case.fault} of rank {case.rank}, {case.times}" if case.fault else "none",
        "hosts": {str(rank): f"h{rank}" for rank in range(case.ranks)},
        "nic": "eth0",
        "layout": {name: case.ranks if name == sizes else 1 for name in ("tp", "dp", "pp")},
        "truth": truth_of(case, onset_ns, epoch_ns),
        "live": bool(hung_ns),
        "mask": hex(ring.status()["mask"]),
        "clock": "one clock for all hosts; no skew added",
    }
    return line | ({"snapshot_mono_ns": hung_ns - epoch_ns} if hung_ns else {})


def record(case: Case, out: Path, python: str, gpu: dict[str, str], deadline: float) -> bool:
    """One case, unless the time is over; says a line about it, and returns whether it has a trace."""
    if time.monotonic() > deadline:
        return False
    with tempfile.TemporaryDirectory(prefix="lockstep-record-") as folder, RankNetwork(case.ranks) as network:
        try:
            print(Job(case, Path(folder), network, gpu, python).run(out), flush=True)
        except (OSError, NotARing, ValueError, subprocess.SubprocessError) as problem:
            print(f"{case.name}: FAILED: {problem!r}", flush=True)
    return path_of(case, out).exists()


def main(words: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, required=True, help="draws the cases and the families for scoring")
    parser.add_argument("--takes", type=int, default=2, help="how often each family is recorded")
    parser.add_argument("--family", action="append", help="only this one, such as ddp_nic; may be given again")
    parser.add_argument("--together", type=int, default=3, help="jobs at a time")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch with CUDA")
    parser.add_argument("--seconds", type=float, default=3600, help="start no case after this time")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-record"), help="where traces go")
    asked = parser.parse_args(words)
    cases = [
        case
        for case in draw(asked.seed, asked.takes)
        if not asked.family or f"{case.mode}_{case.fault or 'healthy'}" in asked.family
    ]
    if not cases:
        parser.error(f"no family is called {' or '.join(asked.family)}: they are a mode and a fault, such as ddp_nic")
    due = [case for case in cases if not path_of(case, asked.out).exists()]
    deadline = time.monotonic() + asked.seconds
    try:
        with SharedGpu() as gpu, ProcessPoolExecutor(asked.together) as pool:
            begun = [pool.submit(record, case, asked.out, asked.python, gpu.environment, deadline) for case in due]
            recorded = sum(each.result() for each in begun)
    except LabError as problem:
        print(f"gpu-record: {problem}")
        return 2
    print(f"{recorded} of {len(due)} cases recorded, {len(cases) - len(due)} were there")
    return 0 if recorded == len(due) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
