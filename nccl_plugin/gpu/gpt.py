# ruff: noqa: T201, TID251 -- a program for people; lockstep is not installed where there is a GPU
"""Trains a small GPT with PyTorch, one rank of many, as real jobs do: loader workers, checkpoints, evaluations.

python gpt.py ddp|fsdp|pipeline|tensor --seconds S [--fault KIND:RANK:AFTER_S[:FOR_S[:TIMES]]] [--seed N] [--width N]
    [--save-every STEPS]

RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT come from the environment. Prints one JSON line when training begins,
one when its fault begins and one when it ends, with UNIX times.
"""

import argparse
import json
import os
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, IterableDataset

WIDTH, LAYERS, HEADS, TOKENS, WORDS, BATCH = 512, 4, 8, 128, 1024, 8  # the width unless told otherwise
CYCLES_PER_S = 1.98e9  # of the H200's clock under load, for kernels that only wait
EVALUATE_EVERY, SAVE_EVERY, EVALUATED_BATCHES = 60, 45, 4
MICROBATCHES = 8


class Words(IterableDataset[Tensor]):
    """Sentences without meaning, made by loader workers; a late one makes its host late."""

    def __init__(self, seed: int, fault: "Fault") -> None:
        self._seed, self._fault = seed, fault

    def __iter__(self) -> Iterator[Tensor]:
        chance = torch.Generator().manual_seed(self._seed)
        while True:
            if self._fault.is_on("loader") and torch.rand((), generator=chance) < 0.8:
                time.sleep(0.5 * self._fault.times)  # longer than a step and what is fetched ahead
            yield torch.randint(WORDS, (BATCH, TOKENS + 1), generator=chance)


class Block(nn.Module):
    """One layer; its four projections are what tensor parallelism splits."""

    def __init__(self, heads: int, width: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        inputs = (self.query, self.key, self.value)
        query, key, value = (each(y).unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in inputs)
        seen = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.between(x))))


class Gpt(nn.Module):
    """Some layers of a GPT: the first has the embedding, the last the words."""

    def __init__(self, layers: int, heads: int, width: int, *, is_first: bool = True, is_last: bool = True) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, width) if is_first else nn.Identity()
        self.blocks = nn.Sequential(*(Block(heads, width) for _ in range(layers)))
        self.head = nn.Linear(width, WORDS) if is_last else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(self.embed(x)))


class Fault:
    """One fault of one rank, from a time on and for a time; what it does is done by `act`, before each step."""

    def __init__(self, words: str, rank: int) -> None:
        given = words.split(":") if words else ["", "-1", "0"]
        kind, who, after, lasts, times = [*given, *("1e9", "1")[len(given) - 3 :]]
        self._kind = kind if int(who) == rank else ""
        self._after_s, self.lasts_s, self.times = float(after), float(lasts), float(times)
        self._began, self._was_on, self.steps = time.monotonic(), False, 0

    def begin(self) -> None:
        """Training has begun; time counts from here."""
        self._began = time.monotonic()

    def is_on(self, kind: str) -> bool:
        return kind == self._kind and 0 <= time.monotonic() - self._began - self._after_s < self.lasts_s

    def act(self) -> None:
        """Be at fault, if it is time."""
        self.steps += 1
        is_on = self.is_on(self._kind) and bool(self._kind)
        if is_on != self._was_on:
            say(event="fault" if is_on else "healed", kind=self._kind)
            self._was_on = is_on
        if is_on:
            _ACTS.get(self._kind, lambda fault: None)(self)


def _wait_on_gpu(seconds: float) -> None:
    torch.cuda._sleep(int(seconds * CYCLES_PER_S))


def _fail(_: Fault) -> None:
    raise RuntimeError("a fault that was asked for")


def _send_too_much(_: Fault) -> None:
    dist.all_reduce(torch.ones(20_000, device="cuda"))


_ACTS: dict[str, Callable[[Fault], None]] = {
    "gpu": lambda fault: _wait_on_gpu(0.12 * fault.times),
    "seventh": lambda fault: _wait_on_gpu(0.25 * fault.times) if fault.steps % 7 == 0 else None,
    "host": lambda fault: time.sleep(0.15 * fault.times),
    "stop": lambda _: os.kill(os.getpid(), signal.SIGSTOP),
    "absent": lambda fault: time.sleep(min(3600, fault.lasts_s)),
    "kernel": lambda fault: _wait_on_gpu(min(25, fault.lasts_s)),
    "crash": _fail,
    "mismatch": _send_too_much,
}


def say(**facts: object) -> None:
    """One line for the program that started us."""
    print(json.dumps({"unix_ns": time.time_ns(), **facts}), flush=True)


Step = Callable[[Tensor], None]


def make_step(mode: str, rank: int, ranks: int, width: int) -> tuple[nn.Module, Step]:
    """The model as this kind of parallelism keeps it, and what one step of training is."""
    device = torch.device("cuda")
    if mode == "pipeline":
        share = LAYERS // ranks
        part = Gpt(share, HEADS, width, is_first=rank == 0, is_last=rank == ranks - 1).to(device)
        return part, _pipeline_step(part, rank, ranks, device)
    if mode == "tensor":
        model: nn.Module = Gpt(LAYERS, HEADS // ranks, width).to(device)
        _split_tensors(model, init_device_mesh("cuda", (ranks,)))
    elif mode == "fsdp":
        model = Gpt(LAYERS, HEADS, width).to(device)
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    else:
        model = DistributedDataParallel(Gpt(LAYERS, HEADS, width).to(device), bucket_cap_mb=8)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)  # split and whole tensors do not mix

    def step(words: Tensor) -> None:
        optimizer.zero_grad()
        _loss(model(words[:, :-1]), words[:, 1:]).backward()
        optimizer.step()

    return model, step


def _loss(out: Tensor, words: Tensor) -> Tensor:
    return nn.functional.cross_entropy(out.flatten(0, 1), words.flatten())


def _split_tensors(model: Gpt, mesh: object) -> None:
    plan = {name: ColwiseParallel() for name in ("query", "key", "value", "up")}
    rows = {name: RowwiseParallel() for name in ("out", "down")}
    for block in model.blocks:
        parallelize_module(block, mesh, {**plan, **rows})  # type: ignore[arg-type]


def _pipeline_step(part: nn.Module, rank: int, ranks: int, device: torch.device) -> Step:
    schedule = Schedule1F1B(PipelineStage(part, rank, ranks, device), MICROBATCHES, loss_fn=_loss)
    optimizer = torch.optim.AdamW(part.parameters(), lr=1e-4)

    def step(words: Tensor) -> None:
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(words[:, :-1])
        elif rank == ranks - 1:
            schedule.step(target=words[:, 1:], losses=[])
        else:
            schedule.step()
        optimizer.step()

    return step


def train(mode: str, seconds: float, fault: Fault, seed: int, width: int, save_every: int) -> None:
    """Steps, and between them what real jobs do, until the time is over for all."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(seed if mode in ("tensor", "pipeline") else seed + rank)
    model, step = make_step(mode, rank, ranks, width)
    stream = seed if mode in ("tensor", "pipeline") else seed + rank
    fault.begin()
    batches = iter(DataLoader(Words(stream, fault), batch_size=None, num_workers=1, prefetch_factor=2))
    say(event="training", mode=mode)
    ends = time.monotonic() + seconds
    for number in range(10**9):
        fault.act()
        step(next(batches).cuda(non_blocking=True))
        torch.cuda.synchronize()  # as a loop that prints its loss does
        if mode != "pipeline" and number % EVALUATE_EVERY == EVALUATE_EVERY - 1:
            with torch.no_grad():
                for _ in range(EVALUATED_BATCHES):
                    model(next(batches).cuda()[:, :-1])
        if mode == "ddp" and rank == 0 and number % save_every == save_every - 1:
            save(model)
        if number % 10 == 9 and is_over(ends):
            break
    torch.cuda.synchronize()


def save(model: nn.Module) -> None:
    """A checkpoint as rank 0 of a small job writes it: while it writes, all others wait."""
    with tempfile.TemporaryDirectory() as folder:
        torch.save(model.state_dict(), Path(folder) / "checkpoint.pt")


def is_over(ends: float) -> bool:
    """Whether some rank's time is over; all ranks get the same answer."""
    over = torch.tensor([float(time.monotonic() > ends)], device="cuda")
    dist.all_reduce(over, op=dist.ReduceOp.MAX)
    return bool(over.item())


def main() -> None:
    """One rank, from rendezvous to its end."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("mode", choices=("ddp", "fsdp", "pipeline", "tensor"))
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--fault", default="")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--width", type=int, default=WIDTH)
    parser.add_argument("--save-every", type=int, default=SAVE_EVERY)
    asked = parser.parse_args()
    rank = int(os.environ["RANK"])
    torch.cuda.set_device(0)
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    train(asked.mode, asked.seconds, Fault(asked.fault, rank), asked.seed, asked.width, asked.save_every)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
