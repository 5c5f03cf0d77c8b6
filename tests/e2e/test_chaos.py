"""Plugin, collector, gateway and ClickHouse as real processes, killed at random: every operation arrives once."""

import shutil

import pytest

from tests.testbed.chaos import AWAY_S, run_chaos, seconds_for
from tests.tiers import long_except

SEED = 20_261_115
FEW = 6  # in each of which one of three services goes
KILLS = [(FEW, SEED), (50, SEED), *((100, SEED + number) for number in range(1, 11))]  # the last ten are a thousand


@pytest.mark.needs_root
@pytest.mark.slow
@pytest.mark.parametrize("run", long_except(KILLS[:1], KILLS), ids=lambda run: f"{run[0]} kills, seed {run[1]}")
def test_no_operation_is_lost_or_doubled_whatever_is_killed(run: tuple[int, int]) -> None:
    if shutil.which("cc") is None:
        pytest.skip("building the plugin needs cc")
    kills, seed = run
    print(f"seed {seed}")
    away_s = 20 if kills == FEW else AWAY_S
    outcome = run_chaos(kills, seed, seconds_for(kills, away_s), note=print, away_s=away_s)
    assert outcome.is_exact, outcome
