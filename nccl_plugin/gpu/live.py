# ruff: noqa: T201, TID251 -- a program for people; lockstep is not installed where there is a GPU
"""Lockstep live beside real training on one GPU: `make gpu-live`. Who is paged, and is it right?

Eight hosts (network namespaces, each with a NIC for ranks and one for telemetry), a collector on each, the head
beside them with default settings, a webhook that stands for the person on call. Jobs of four ranks train a small GPT
with PyTorch (gpt.py), two at a time, healthy or with one fault. Counted are pages: right, wrong, and the wall time
from the fault to the first right one.

Needs what `make gpu-test` needs, PyTorch with CUDA for `--python`, and a `lockstep` command with its server's parts.
"""

import argparse
import json
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from queue import Queue

from lab import SharedGpu, end_in_order
from live_site import HOSTS, NIC_BYTES_PER_S, RANKS, Site
from namespaces import RankNetwork
from record import HANG, SLOW

HERE = Path(__file__).resolve().parent
SLOW_BYTES_PER_S = NIC_BYTES_PER_S // 3
ECHO_S = 15.0  # after the end of a job: what still comes is counted to it
GPU, HOST, NIC = ("gpu:{host}/0",), ("host:{host}",), ("nic:{host}/eth0",)
PERSON = ("rank:{rank}", *HOST, *GPU)  # of a process that stands still nobody can tell more


@dataclass(frozen=True)
class Case:
    """One job: what it trains, what is done to it, and which pages are right."""

    name: str
    mode: str
    fault: str = ""  # of gpt.py, or `slow_nic`, `dead_nic`, which are done from outside
    rank: int = -1
    classes: tuple[str, ...] = ()
    components: tuple[str, ...] = ()
    seconds: float = 55
    after_s: float = 20

    def accepted(self, host: str) -> set[str]:
        return {component.format(host=host, rank=self.rank) for component in self.components}


CASES = (
    Case("ddp-gpu", "ddp", "gpu", 2, SLOW, GPU),
    Case("healthy-ddp", "ddp"),
    Case("fsdp-host", "fsdp", "host", 1, SLOW, HOST),
    Case("healthy-fsdp", "fsdp"),
    Case("pipeline-gpu", "pipeline", "gpu", 2, SLOW, GPU),
    Case("healthy-pipeline", "pipeline"),
    Case("ddp-nic", "ddp", "slow_nic", 1, ("comm_slow",), NIC),
    Case("healthy-tensor", "tensor"),
    Case("ddp-loader", "ddp", "loader", 3, SLOW, HOST),
    Case("tensor-gpu", "tensor", "gpu", 3, SLOW, GPU),
    Case("fsdp-stop", "fsdp", "stop", 1, HANG, PERSON),
    Case("ddp-absent", "ddp", "absent", 2, HANG, PERSON),
    Case("ddp-seventh", "ddp", "seventh", 1, SLOW, GPU),
    Case("ddp-crash", "ddp", "crash", 3, HANG, PERSON),
    Case("fsdp-nic", "fsdp", "slow_nic", 2, ("comm_slow",), NIC),
    Case("ddp-kernel", "ddp", "kernel", 0, HANG, GPU),
    Case("ddp-mismatch", "ddp", "mismatch", 2, HANG, ("job:ddp-mismatch",)),  # with the rank in its sentence
    Case("ddp-dead-nic", "ddp", "dead_nic", 1, HANG, NIC),
)  # the last ones end their job, and a host that is off the network stays off: nothing may follow on it


@dataclass
class Result:
    """What became of a case."""

    case: Case
    onset_ns: int | None = None
    right: list[dict[str, object]] = field(default_factory=list)
    doubtful: list[dict[str, object]] = field(default_factory=list)  # name another part, and say that it may be ours
    wrong: list[dict[str, object]] = field(default_factory=list)
    trained_s: float = 0.0
    errors: str = ""

    @property
    def named(self) -> bool:
        return bool(self.right)

    @property
    def after_s(self) -> float | None:
        """Seconds from the fault to the first right page."""
        times = [int(str(page["arrived_ns"])) for page in self.right]
        return (min(times) - self.onset_ns) / 1e9 if times and self.onset_ns else None


class Job:
    """One case on four hosts, from its first process to its last."""

    def __init__(self, site: Site, case: Case, first: int, python: str) -> None:
        self._site, self._case, self._first = site, case, first
        self._culprit = first + case.rank
        inside = case.fault if case.fault not in ("slow_nic", "dead_nic") else ""
        words = ["--fault", f"{inside}:{case.rank}:{case.after_s}"] if inside else []
        command = [python, str(HERE / "gpt.py"), case.mode, "--seconds", str(case.seconds), *words]
        self._processes = [self._start(command, rank) for rank in range(RANKS)]

    def _start(self, command: Sequence[str], rank: int) -> "subprocess.Popen[bytes]":
        host = self._first + rank
        environment = self._site.rank_environment(self._case.name, host, rank, self._first)
        with open(self._file(rank), "wb") as log:
            before = self._site.network.command(host)
            return subprocess.Popen([*before, *command], env=environment, stdout=log, stderr=subprocess.STDOUT)

    def _file(self, rank: int) -> Path:
        return self._site.place / f"{self._case.name}.{rank}.out"

    def run(self) -> Result:
        """Wait for its end, being at fault from outside where that is asked for; end what then still runs."""
        result = Result(self._case)
        began = time.monotonic()
        while time.monotonic() - began < self._case.seconds + 15:
            trained = self._lines("training")
            if trained and result.onset_ns is None:
                result.onset_ns = self._onset(trained[0])
            if all(process.poll() is not None for process in self._processes):
                break
            if any(process.poll() for process in self._processes):
                time.sleep(10)  # one has failed: a launcher gives others some time
                break
            time.sleep(0.1)
        end_in_order(self._processes, (signal.SIGCONT, signal.SIGTERM), 8)
        trained = self._lines("training")
        result.trained_s = (time.time_ns() - trained[0]) / 1e9 if trained else 0.0
        failed = [rank for rank, process in enumerate(self._processes) if process.returncode]
        if (not self._case.fault and failed) or not trained:
            result.errors = self._file((failed or [0])[0]).read_text(errors="replace")[-600:]
        if self._case.fault == "slow_nic":
            self._site.limit(self._culprit, NIC_BYTES_PER_S)
        return result

    def _onset(self, trained_ns: int) -> int | None:
        """When the fault began, if it did; one from outside is begun here."""
        if self._case.fault not in ("slow_nic", "dead_nic"):
            return next(iter(self._lines("fault")), None)
        if time.time_ns() < trained_ns + self._case.after_s * 1e9:
            return None
        if self._case.fault == "slow_nic":
            self._site.limit(self._culprit, SLOW_BYTES_PER_S)
        else:
            self._site.network.cut(self._culprit)
        return time.time_ns()

    def _lines(self, event: str) -> list[int]:
        texts = (self._file(rank).read_text(errors="replace") for rank in range(RANKS))
        lines = (line for text in texts for line in text.splitlines() if line.startswith('{"unix_ns"'))
        return sorted(int(json.loads(line)["unix_ns"]) for line in lines if f'"event": "{event}"' in line)


def judge(result: Result, pages: Sequence[dict[str, object]], host: str) -> None:
    """Sort the pages of a job into right and wrong ones; one incident is one page."""
    accepted = result.case.accepted(host)
    seen: set[object] = set()
    for page in pages:
        if page["job"] != result.case.name or page["kind"] not in ("opened", "updated"):
            continue
        is_right = page["component"] in accepted and page["class"] in result.case.classes
        if is_right:
            result.right.append(page)
        elif page["class"] in result.case.classes and accepted & others_of(page):
            result.doubtful.append(page)
        elif page["subject"] not in seen:
            result.wrong.append(page)
        seen.add(page["subject"])
    # First named otherwise, then right: still one page, and right.
    named = {page["subject"] for page in (*result.right, *result.doubtful)}
    result.wrong = [page for page in result.wrong if page["subject"] not in named]


def others_of(page: dict[str, object]) -> set[str]:
    """The parts that a page says it might be as well."""
    facts = page["facts"]
    return set(str(facts.get("or it is", "")).split(", ")) if isinstance(facts, dict) else set()


def play(site: Site, cases: Sequence[Case], python: str, deadline: float, out: Path) -> list[Result]:
    """All cases, two at a time, each on its own four hosts."""
    due: Queue[Case] = Queue()
    for case in cases:
        due.put(case)
    results: list[tuple[Result, str]] = []

    def work(first: int) -> None:
        while not due.empty() and time.monotonic() < deadline:
            case = due.get()
            result = Job(site, case, first, python).run()
            results.append((result, f"h{first + case.rank}"))
            threading.Timer(ECHO_S - 2, site.capture, (case.name, out)).start()
            print(f"{case.name}: ended after {result.trained_s:.0f} s {result.errors}", flush=True)

    workers = [threading.Thread(target=work, args=(first,)) for first in range(0, HOSTS, RANKS)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    time.sleep(2 * ECHO_S)
    for result, host in results:
        judge(result, list(site.pager.pages), host)
    return [result for result, _ in results]


def tabulate(results: Sequence[Result]) -> str:
    """One line a case, then what an SRE would ask."""
    lines = ["| case | named | after | wrong pages |", "|---|---|---|---|"]
    for result in results:
        wrong = ", ".join(f"{page['class']} {page['component']}" for page in result.wrong) or "none"
        after = f"{result.after_s:.1f} s" if result.after_s is not None else ""
        named = "yes" if result.named else "in doubt" if result.doubtful else "no"
        named = named if result.case.fault else "healthy"
        lines.append(f"| {result.case.name} | {named} | {after} | {wrong} |")
    faults = [result for result in results if result.case.fault]
    healthy = [result for result in results if not result.case.fault]
    times = [result.after_s for result in faults if result.after_s is not None]
    hours = sum(result.trained_s for result in results) / 3600
    wrong = sum(len(result.wrong) for result in results)
    lines.append(
        f"\n{sum(result.named for result in faults)} of {len(faults)} faults named, "
        f"{sum(bool(result.doubtful) and not result.named for result in faults)} in doubt with another part, "
        f"{sum(not result.wrong for result in healthy)} of {len(healthy)} healthy jobs silent, {wrong} wrong pages "
        f"in {hours:.2f} hours of jobs; median {statistics.median(times or [float('nan')]):.1f} s to the page"
    )
    return "\n".join(lines)


def main(words: Sequence[str]) -> int:
    """Build the site, play the cases, print the table; 0 where every job could train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", help="only this case; may be given again")
    parser.add_argument("--python", default=sys.executable, help="a Python that has PyTorch with CUDA")
    parser.add_argument(
        "--lockstep", default="lockstep", help="the command, with its first words where it needs some"
    )
    parser.add_argument("--seconds", type=float, default=3600, help="start no case after this time")
    parser.add_argument("--out", type=Path, default=Path("build/gpu-live"), help="where results and logs go")
    asked = parser.parse_args(words)
    cases = [case for case in CASES if not asked.case or case.name in asked.case]
    asked.out.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="lockstep-live-", dir="/dev/shm") as folder,
        SharedGpu() as gpu,
        RankNetwork(HOSTS, managed=True) as network,
    ):
        network.enter_head()
        site = Site(Path(folder), shlex.split(asked.lockstep), network, gpu.environment)
        try:
            site.start()
            results = play(site, cases, asked.python, time.monotonic() + asked.seconds, asked.out)
        finally:
            site.stop()
            for log in Path(folder).glob("*.log"):
                shutil.copy(log, asked.out)
    (asked.out / "live.json").write_text(json.dumps([asdict(result) for result in results], indent=1))
    print(tabulate(results))
    return int(any(not result.trained_s for result in results))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
