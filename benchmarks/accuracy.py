"""The analyzer's claim: it names the part that broke, and is silent when none did.

Every family of scenarios, simulated with seeds that no threshold was tuned on; truth is what one breaks. Beside
it, two rules of others on the same rows. Results are kept as they come, one line of JSON a run, in a file named after
the sources that made them: a run that was interrupted goes on where it was.
"""

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from multiprocessing import get_context
from pathlib import Path

from benchmarks.accuracy_run import Result, examine
from benchmarks.accuracy_score import Case, Named, Score, plan_cases, plan_worlds, score
from benchmarks.accuracy_table import figures_of, figures_of_worlds
from benchmarks.figures import Figure, Note
from simulator.scenario import Expectation, list_scenarios

_QUICK_SEED = 1_001
_QUICK = ("nic-half-speed", "hang-absent-ib", "healthy")  # a wire, a hang and silence: what half a minute allows
# What makes results, beside the analyzer and the simulator.
_MAKERS = tuple(f"benchmarks/accuracy_{name}.py" for name in ("run", "worlds", "faults", "truth"))
_RUNS_PER_PROCESS = 25  # then a fresh one: the embedded engine keeps what it has allocated


@dataclass(frozen=True)
class Workload:
    """What to run, where to keep the results, and on how many cores."""

    cases: Sequence[Case]
    results: Path
    processes: int = 2


def measure(
    quick: bool,
    note: Note,
    full: bool = False,
    worlds: Sequence[int] = (),
    seed: int = 1,
    families: Sequence[str] = (),
    seeds: str = "",
) -> tuple[Figure, ...]:
    """Return the figures of the analyzer's accuracy: on the scenarios, or on some worlds of a seed."""
    if worlds:
        workload = Workload(plan_worlds(seed, worlds), default_results(), processes=_cores())
        return figures_of_worlds(run_all(workload, note)[""])
    if quick:
        scenarios = {scenario.name: scenario for scenario in list_scenarios()}
        cases = [Case(name, scenarios[name].ranks, _QUICK_SEED) for name in _QUICK]
    else:
        cases = plan_cases(full, families, parse_seeds(seeds))
    return figures_of(run_all(Workload(cases, default_results(), processes=_cores()), note))


def run_all(workload: Workload, note: Note) -> dict[str, list[Score]]:
    """Return the scores of all cases, of the analyzer ("") and of each peer; runs only what has no result yet."""
    known = read_results(workload.results)
    missing = [case for case in workload.cases if case.key not in known]
    note(f"{len(workload.cases)} runs, {len(missing)} of them to do; results go to {workload.results}")
    workload.results.parent.mkdir(parents=True, exist_ok=True)
    with workload.results.open("a", encoding="utf-8") as file:
        file.write("\n" if file.tell() else "")  # a line that was cut off must not spoil the next one
        for number, result in enumerate(_examine(missing, workload), 1):
            file.write(json.dumps(result) + "\n")
            file.flush()  # an interruption loses the runs under way and no other
            known[result["key"]] = result
            note(f"{number}/{len(missing)} {_in_short(result)}")
    return score_results([known[case.key] for case in workload.cases])


def score_results(results: Sequence[Result]) -> dict[str, list[Score]]:
    """Return the scores of the analyzer, under an empty name, and of each peer."""
    names = ["", *sorted({name for result in results for name in result["peers"]})]
    return {name: [_score(result, name) for result in results] for name in names}


def read_results(file: Path) -> dict[str, Result]:
    """Return the results in a file by key; a line that was cut off by an interruption is done again."""
    if not file.exists():
        return {}
    found: dict[str, Result] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        with suppress(ValueError):
            result = json.loads(line)
            found[result["key"]] = result
    return found


def default_results() -> Path:
    """Return where results of these sources are kept: other sources, other results."""
    root = Path(__file__).parent.parent
    patterns = ("analyzer/**/*.py", "lockstep/**/*.py", "simulator/**/*.py", "simulator/scenarios/*.toml", *_MAKERS)
    files = sorted({file for pattern in patterns for file in root.glob(pattern)})
    digest = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"lockstep-accuracy-{os.getuid()}" / f"{digest}.jsonl"


def _examine(cases: Sequence[Case], workload: Workload) -> Iterator[Result]:
    """Yield results as they come; a few runs are under way at a time, so that an end comes soon after a Ctrl-C."""
    if not cases:
        return
    context, ahead = get_context("spawn"), iter(cases)
    with ProcessPoolExecutor(workload.processes, context, max_tasks_per_child=_RUNS_PER_PROCESS) as pool:
        running: set[Future[Result]] = set()
        while True:
            for case in ahead:
                running.add(pool.submit(examine, case))
                if len(running) > workload.processes:
                    break
            if not running:
                return
            done, running = wait(running, return_when=FIRST_COMPLETED)
            yield from (future.result() for future in done)


def _score(result: Result, peer: str) -> Score:
    case = Case(**result["case"])
    reported = result["peers"].get(peer, []) if peer else result["named"]
    tuples = ("ambiguous_with", "aliases")  # lists in JSON
    named = [Named(**one | {name: tuple(one[name]) for name in tuples}) for one in reported]
    scenario, allowed = case.scenario_at_size(), tuple[Expectation, ...]()
    if case.world >= 0:  # what can be known of a world is known when it has run
        right, allowed = (tuple(map(Expectation.model_validate, result[name])) for name in ("expect", "allowed"))
        scenario = scenario.model_copy(update={"expect": right})
    scored = score(scenario, case.seed, named, result["step_s"], result.get("lost_s"), allowed)
    return replace(
        scored, crashed=bool(result["error"]) and not peer, world=case.world, unseen=bool(result.get("why"))
    )


def _in_short(result: Result) -> str:
    """Return one line on a run: what was right, missed and wrong."""
    scored = _score(result, "")
    late = ["" if hit.in_time else " late" for hit in scored.hits]
    parts = [f"{hit.named.component} +{hit.delay_s:.0f} s{mark}" for hit, mark in zip(scored.hits, late, strict=True)]
    parts += [f"MISSED {part}" for part in scored.missed] + [
        f"not to be seen: {why}" for why in result.get("why", ())
    ]
    parts += [
        f"WRONG {named.component} {named.fault_class} at {named.opened_s:.0f} s ({named.confidence:.2f})"
        for named in (*scored.wrong, *scored.alarms)
    ]
    kind = f" {scored.family}" if scored.world >= 0 else ""
    return f"{result['key']}{kind}: {result['error'] or ', '.join(parts) or 'silence'}"


def _cores() -> int:
    return max(len(os.sched_getaffinity(0)), 1)


def parse_seeds(text: str) -> list[int]:
    """Return the seeds in a list of numbers and stretches.

    >>> parse_seeds("1-3,7")
    [1, 2, 3, 7]
    """
    stretches = [part.partition("-") for part in text.split(",") if part]
    return [seed for low, _, high in stretches for seed in range(int(low), int(high or low) + 1)]
