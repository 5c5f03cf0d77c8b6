"""Plugin, collector, gateway and ClickHouse as real processes, killed at random: every operation arrives once."""

import shutil

import pytest

from tests.testbed.chaos import run_chaos


@pytest.mark.needs_root
@pytest.mark.slow
@pytest.mark.parametrize("kills", [10, pytest.param(50, marks=pytest.mark.long)])
def test_no_operation_is_lost_or_doubled_whatever_is_killed(kills: int) -> None:
    if shutil.which("cc") is None:
        pytest.skip("building the plugin needs cc")
    seed = 20_261_115
    print(f"seed {seed}")
    outcome = run_chaos(kills, seed, seconds=kills * 3 + 120, note=print)
    assert outcome.is_exact, outcome
