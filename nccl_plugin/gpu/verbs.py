# ruff: noqa: T201, TID251 -- a program for people; lockstep is not installed where there is a GPU
"""Runs unmodified NCCL over its InfiniBand transport on the verbs stand-in, with and without planned source ports.

    python3 nccl_plugin/gpu/verbs.py --out FOLDER

Every rank has a network namespace of its own and shares the one GPU. Each variant has a limit of time; a rank that
dies leaves its backtrace, and NCCL's own log is kept. FOLDER gets result.md, a page for people, result.json and
logs.tar.gz. Needs what `make gpu-test` needs but nvcc, PyTorch with CUDA, a C compiler, and rdma-core's headers
(`--headers`: where infiniband/verbs.h is).
"""

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lab import SharedGpu, base_environment, end_in_order, json_lines
from namespaces import NETWORKS, RankNetwork, RoceCapture
from record import Case, draw, record

HERE = Path(__file__).resolve().parent
REPO = HERE.parents[1]
PYTHONS = ("/opt/torch/.venv/bin/python", shutil.which("python3") or sys.executable)
FIRST_PLANNED, PLANNED_EACH = 50_000, 8  # source ports of the queue pairs from one rank to another

# Of stock NCCL, so that it takes the stand-in and nothing else. NCCL_GIN_TYPE: 2.28.9 looks for GPU-initiated
# networking by itself (-1), finds no mlx5 device, and then calls through the pointer (ncclGin_t *)-1 that stood for
# "look" (src/plugin/net.cc); 0 leaves it out.
NCCL_OVER_VERBS = {
    "NCCL_NET": "IB",
    "NCCL_IB_DISABLE": "0",
    "NCCL_IB_HCA": "=soft_eth0",
    "NCCL_IB_GID_INDEX": "0",
    "NCCL_NET_GDR_LEVEL": "LOC",
    "NCCL_DMABUF_ENABLE": "0",
    "NCCL_GIN_TYPE": "0",
    "NCCL_SOCKET_IFNAME": "eth0",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,BOOTSTRAP",
}


@dataclass(frozen=True)
class Variant:
    """One job, and what is different about it."""

    name: str
    ranks: int = 2
    environment: Mapping[str, str] = field(default_factory=dict)
    planned: bool = False
    pci_path: bool = False
    most_bytes: int = 256 << 20
    timeout_s: float = 60


FOUR_QPS = {"NCCL_IB_QPS_PER_CONNECTION": "4", "NCCL_IB_SPLIT_DATA_ON_QPS": "1"}
SMALL = 16 << 20
VARIANTS = (
    Variant("plain"),
    Variant("four-queue-pairs", environment=FOUR_QPS, most_bytes=SMALL),
    Variant("four-queue-pairs-planned", environment=FOUR_QPS, planned=True),
    Variant("with-pci-path", pci_path=True, most_bytes=SMALL),
    Variant("four-ranks", ranks=4, most_bytes=64 << 20),
    Variant("four-ranks-planned", ranks=4, environment=FOUR_QPS, planned=True, most_bytes=SMALL),
    Variant("eight-ranks", ranks=8, most_bytes=SMALL),
    # The crash that was not understood, and the other way around it.
    Variant("gin-by-itself", environment={"NCCL_GIN_TYPE": "-1"}, most_bytes=SMALL, timeout_s=30),
    Variant("gin-proxy", environment={"NCCL_GIN_TYPE": "2"}, most_bytes=SMALL, timeout_s=30),
)
RECORDED = ("ddp_healthy", "ddp_nic", "ddp_stop", "ddp_gpu", "fsdp_nic")  # families of record.py


@dataclass
class Built:
    """Where the parts are."""

    verbs: Path
    shim: Path
    crash: Path
    pci: Path


def build(folder: Path, headers: Path) -> Built:
    """Build the stand-in, the shim's verbs half, and what is preloaded for looking."""
    verbs, shim = folder / "softverbs", folder / "shim"
    for place, target, source in (
        (verbs, "libibverbs.so", REPO / "tests/testbed/softverbs"),
        (shim, "verbs/libibverbs.so", REPO / "path_shim"),
    ):
        words = ["make", "--silent", "-C", str(source), f"BUILD={place}", f"VERBS={headers}", str(place / target)]
        subprocess.run(words, check=True)
    for name in ("crash", "pci_path"):
        output = str(folder / f"{name}.so")
        subprocess.run(["cc", "-O1", "-shared", "-fPIC", str(HERE / f"{name}.c"), "-o", output, "-ldl"], check=True)
    return Built(verbs, shim / "verbs", folder / "crash.so", folder / "pci_path.so")


def find_gpu_path() -> str:
    """Return the sysfs path of the GPU, on whose PCI device the stand-in shall seem to hang; "" where none shows."""
    vendors = sorted(Path("/sys/bus/pci/devices").glob("*/vendor"))
    return next((str(each.parent.resolve()) for each in vendors if each.read_text().strip() == "0x10de"), "")


def planned_ports(here: int, there: int) -> range:
    """Return the ports of the queue pairs from a rank to another: no two pairs of ranks have one in common."""
    first = FIRST_PLANNED + (here * 16 + there) * PLANNED_EACH
    return range(first, first + PLANNED_EACH)


def write_plan(folder: Path, ranks: int) -> Path:
    """Write a plan of queue pairs for all pairs of ranks; return the name of the plan beside which it lies."""
    lines = [
        f"{NETWORKS['eth0']}.{here + 1} {NETWORKS['eth0']}.{there + 1} {port} 1 trial/{here}/{number}"
        for here in range(ranks)
        for there in range(ranks)
        for number, port in enumerate(planned_ports(here, there) if here != there else ())
    ]
    text = "\n".join(["lockstep-queue-pairs 1 1 0 advisory", *lines, f"end {len(lines)}", ""])
    (folder / "plan.queue-pairs").write_text(text)
    (folder / "reports").mkdir()
    return folder / "plan"


class Trial:
    """Runs one variant and says what came of it."""

    def __init__(self, built: Built, gpu: Mapping[str, str], python: str, logs: Path) -> None:
        self._built, self._gpu, self._python, self._logs = built, gpu, python, logs

    def run(self, variant: Variant) -> dict[str, object]:
        folder = self._logs / variant.name
        folder.mkdir(parents=True)
        plan = write_plan(folder, variant.ranks)
        began = time.monotonic()
        with RankNetwork(variant.ranks) as network:
            capture = RoceCapture(network)
            ranks = [self._start(variant, rank, folder, plan, network) for rank in range(variant.ranks)]
            codes = self._wait(ranks, variant.timeout_s)
            wire = capture.close()
        return self._outcome(variant, folder, codes, wire, time.monotonic() - began)

    def _environment(self, variant: Variant, rank: int, folder: Path, plan: Path) -> dict[str, str]:
        preloaded = [self._built.crash, *([self._built.pci] if variant.pci_path else [])]
        places = [*([self._built.shim] if variant.planned else []), self._built.verbs]
        return (
            base_environment()
            | dict(self._gpu)
            | NCCL_OVER_VERBS
            | dict(variant.environment)
            | {
                "LD_LIBRARY_PATH": ":".join([*map(str, places), os.environ.get("LD_LIBRARY_PATH", "")]),
                "LD_PRELOAD": " ".join(map(str, preloaded)),
                "LOCKSTEP_PCI_PATH": find_gpu_path(),
                "LOCKSTEP_PATHS_FILE": str(plan),
                "LOCKSTEP_PATHS_REPORT_DIR": str(folder / "reports"),
                "LOCKSTEP_SOFTVERBS_SYSFS": str(folder / f"sysfs.{rank}"),
                "NCCL_HOSTID": f"{variant.name}-{rank}",
                "NCCL_DEBUG_FILE": str(folder / f"nccl.{rank}"),
                "MOST_BYTES": str(variant.most_bytes),
                "MEETING": str(folder / "meeting"),
                "RANK": str(rank),
                "WORLD_SIZE": str(variant.ranks),
                "OMP_NUM_THREADS": "1",
            }
        )

    def _start(
        self, variant: Variant, rank: int, folder: Path, plan: Path, network: RankNetwork
    ) -> "subprocess.Popen[bytes]":
        command = [*network.command(rank), self._python, str(HERE / "verbs_rank.py")]
        environment = self._environment(variant, rank, folder, plan)
        # nsenter itself is not to be preloaded into: env does that behind it.
        hidden = {name: environment.pop(name) for name in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
        command[-2:-2] = ["env", *(f"{name}={value}" for name, value in hidden.items())]
        with open(folder / f"out.{rank}", "wb") as out, open(folder / f"err.{rank}", "wb") as err:
            return subprocess.Popen(command, env=environment, stdout=out, stderr=err)

    def _wait(self, ranks: "Sequence[subprocess.Popen[bytes]]", timeout_s: float) -> list[int | None]:
        deadline = time.monotonic() + timeout_s
        while any(rank.poll() is None for rank in ranks) and time.monotonic() < deadline:
            if any(rank.returncode for rank in ranks):
                deadline = min(deadline, time.monotonic() + 8)  # the others may say something, too
            time.sleep(0.1)
        codes = [rank.poll() for rank in ranks]
        end_in_order(ranks, (signal.SIGTERM,), 6)
        return codes

    def _outcome(
        self, variant: Variant, folder: Path, codes: list[int | None], wire: dict[str, int], seconds: float
    ) -> dict[str, object]:
        said = [json_lines(folder / f"out.{rank}") for rank in range(variant.ranks)]
        checks = [line for lines in said for line in lines if "right" in line]
        ended = sum(line["op"] == "end" for lines in said for line in lines)
        wanted = {
            f"{NETWORKS['eth0']}.{here + 1}:{port}"
            for here in range(variant.ranks)
            for there in range(variant.ranks)
            for port in planned_ports(here, there)
        }
        reports = [line for file in sorted((folder / "reports").iterdir()) for line in file.read_text().splitlines()]
        planned_bytes = sum(count for source, count in wire.items() if source in wanted)
        return {
            "variant": variant.name,
            "codes": codes,
            "seconds": round(seconds, 1),
            "works": ended == variant.ranks and bool(checks) and all(line["right"] for line in checks),
            "checks": said[0],
            "wrong": [line for line in checks if not line["right"]],
            "wire_bytes": wire,
            "share_of_bytes_on_planned_ports": round(planned_bytes / max(1, sum(wire.values())), 4),
            "outcomes": Counter(line.rsplit(" ", 1)[-1] for line in reports),
            "errors": [_tail(folder / f"err.{rank}") for rank in range(variant.ranks)],
            "nccl": [_tail(folder / f"nccl.{rank}", 12) for rank in range(variant.ranks)],
            "transport": _grep(folder / "nccl.0", ("Using network", "via NET", "NET/IB", "GDRDMA", "WARN"))[:14],
        }


def _tail(file: Path, lines: int = 40) -> list[str]:
    return file.read_text(errors="replace").splitlines()[-lines:] if file.exists() else ["(no file)"]


def _grep(file: Path, words: Sequence[str]) -> list[str]:
    lines = file.read_text(errors="replace").splitlines() if file.exists() else []
    return [line for line in lines if any(word in line for word in words)]


def page_of(results: Sequence[Mapping[str, object]]) -> str:
    """Return the page for people."""
    lines = [
        f"# NCCL over NET/IB on the verbs stand-in: {platform.release()}, {os.cpu_count()} cores",
        "",
        "| variant | works | exit codes | s | outcomes of the shim | bytes on planned ports |",
        "|---|---|---|---:|---|---:|",
    ]
    for each in results:
        told = ("works", "codes", "seconds", "outcomes", "share_of_bytes_on_planned_ports")
        lines.append(f"| {each['variant']} | {' | '.join(str(each.get(key, '')) for key in told)} |")
    for each in results:
        lines += ["", f"## {each['variant']}", "", "```"]
        for key in ("failure", "transport", "checks", "wrong", "wire_bytes"):
            found = each.get(key)
            lines += [f"{key}: {line}" for line in (found if isinstance(found, list) else [found]) if line]
        if not each.get("works"):
            lines += _last_words(each)
        lines.append("```")
    return "\n".join(map(str, lines)) + "\n"


def _last_words(result: Mapping[str, Any]) -> list[str]:  # Any: lines by rank
    files = [(rank, said) for key in ("errors", "nccl") for rank, said in enumerate(result.get(key) or ())]
    return [f"rank {rank}: {line}" for rank, said in files for line in said]


def find_cases(seed: int) -> list[Case]:
    """Return a case of each family that is recorded here, named after its transport."""
    drawn = {f"{case.mode}_{case.fault or 'healthy'}": case for case in draw(seed, 1)}
    return [replace(drawn[family], name=f"ib_{drawn[family].name}") for family in RECORDED]


def record_cases(built: Built, gpu: Mapping[str, str], asked: argparse.Namespace, deadline: float) -> None:
    """Record torch jobs over the stand-in as record.py does, every callback of NCCL; pack the traces."""
    subprocess.run(["make", "--silent", "-C", str(HERE.parent), "all"], check=True)
    places = f"{built.verbs}:{os.environ.get('LD_LIBRARY_PATH', '')}"
    environment = {**gpu, **NCCL_OVER_VERBS, "NCCL_DEBUG": "WARN", "LD_LIBRARY_PATH": places}
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(2) as pool:
        begun = [
            pool.submit(record, case, Path(folder), asked.python, environment, deadline)
            for case in find_cases(asked.seed)
        ]
        print(f"{sum(each.result() for each in begun)} of {len(begun)} cases recorded", flush=True)
        with tarfile.open(asked.out / "traces.tar", "w") as packed:
            packed.add(folder, "traces")


def read_arguments(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/gpu-verbs"), help="where results go")
    parser.add_argument("--headers", type=Path, default=Path("/usr/include"), help="where infiniband/verbs.h is")
    parser.add_argument("--python", default=next(filter(os.path.exists, PYTHONS)), help="one with PyTorch")
    parser.add_argument("--only", action="append", help="this variant; may be given again")
    parser.add_argument("--seed", type=int, help="record cases of record.py, drawn from this, over the stand-in, too")
    parser.add_argument("--seconds", type=float, default=540, help="start nothing new after this time")
    return parser.parse_args(words)


def main(words: Sequence[str]) -> int:
    """Runs what there is time for; what was found is written after each variant."""
    arguments = read_arguments(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + arguments.seconds
    results: list[dict[str, object]] = []
    with tempfile.TemporaryDirectory(prefix="lockstep-verbs-") as folder, SharedGpu() as gpu:
        logs = Path(folder) / "logs"
        built = build(Path(folder), arguments.headers.resolve())
        trial = Trial(built, gpu.environment, arguments.python, logs)
        for variant in VARIANTS:
            is_wanted = not arguments.only or variant.name in arguments.only
            if not is_wanted or time.monotonic() + variant.timeout_s > deadline:
                continue
            try:
                results.append(trial.run(variant))
            except Exception as failure:  # noqa: BLE001 -- the other variants are still worth their time
                results.append({"variant": variant.name, "failure": repr(failure)})
            print(
                json.dumps({key: results[-1].get(key) for key in ("variant", "works", "codes", "failure")}),
                flush=True,
            )
            (arguments.out / "result.md").write_text(page_of(results))
            (arguments.out / "result.json").write_text(json.dumps(results, indent=1))
            with tarfile.open(arguments.out / "logs.tar.gz", "w:gz") as packed:
                packed.add(logs, "logs")
        if arguments.seed is not None:
            record_cases(built, gpu.environment, arguments, deadline)
    print((arguments.out / "result.md").read_text()[:6000], flush=True)
    return 0 if results and all(each.get("works") for each in results if "gin" not in str(each["variant"])) else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
