"""A checkpoint saved on one mesh of ranks is loaded on another, and the losses go on as if nothing had changed."""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from tests.testbed.training.checkpointed import LoggedStep, read_log
from tests.testbed_checks.training.in_turn import start_in_turn
from tests.waiting import LIMIT_S

pytestmark = pytest.mark.slow

SAVED_AT, STEPS = 3, 6
LAYOUTS = {"2x2": 4, "4x1": 4, "1x2": 2, "1x1": 1, "3x1": 3}  # with 12 samples and 32 rows, 3 replicas share unevenly

Logs = Mapping[str, Mapping[int, LoggedStep]]


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Logs:
    """The run that saved at 2x2 and went on, as `whole`, and the runs that went on from its checkpoint."""
    folder = tmp_path_factory.mktemp("resharding")

    def arguments(name: str, layout: str) -> list[str]:
        where = [f"--dir={folder / name}", f"--log={folder / name}.jsonl"]
        return [*where, f"--steps={STEPS}", f"--every={SAVED_AT}", f"--ranks={LAYOUTS[layout]}", f"--layout={layout}"]

    saved = folder / "whole" / f"step-{SAVED_AT}"
    jobs = [(None, arguments("whole", "2x2")), *((saved, arguments(layout, layout)) for layout in LAYOUTS)]
    with start_in_turn(jobs) as process:
        try:
            ends = process.communicate(timeout=LIMIT_S)[0].splitlines()
        finally:
            process.kill()
    assert ends == ["done"] * len(jobs)
    return {name: read_log(folder / f"{name}.jsonl") for name in ("whole", *LAYOUTS)}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_losses_go_on_on_another_mesh(logs: Logs, layout: str) -> None:
    whole, resumed = logs["whole"], logs[layout]

    assert list(whole) == [1, 2, 3, 4, 5, 6]
    assert list(resumed) == [4, 5, 6]
    assert {(line.layout, line.ranks, line.resumed_from) for line in resumed.values()} == {
        (layout, LAYOUTS[layout], SAVED_AT)
    }
    for step, line in resumed.items():
        assert line.loss == pytest.approx(whole[step].loss, abs=1e-6), step


def test_losses_without_the_checkpoint_would_be_others(logs: Logs) -> None:
    """Guards the test above: batches differ so much between steps that a state of step 0 could not hide."""
    losses = [line.loss for line in logs["whole"].values()]

    assert min(abs(one - other) for one, other in pairwise(losses)) > 1e-3
