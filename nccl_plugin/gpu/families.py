# ruff: noqa: S311 -- it draws no secrets
"""What `make gpu-record` records: families of faults of real training, drawn from a seed, and their truth."""

import random
from dataclasses import dataclass

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
