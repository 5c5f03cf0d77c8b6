"""A gateway killed before every single write, sync, rename, deletion and insert of its life."""

import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.store.store import open_store
from tests.api.ingest.crash_child import BATCHES, ROWS
from tests.testbed.clickhouse import ClickHouseServer

REPO = Path(__file__).parents[3]


@pytest.mark.slow
def test_wherever_a_gateway_dies_its_next_life_has_every_batch_once(
    clickhouse: ClickHouseServer, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.api.ingest.crash_child", clickhouse.url_for("crash"), str(tmp_path)]
    told = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=600, check=True).stdout
    lives = [tuple(map(int, line.split())) for line in told.splitlines()]
    assert len(lives) > 15, "there are more points than that at which a gateway can die"
    assert [died for _, _, died, _ in lives] == [-9] * (len(lives) - 1) + [0]
    assert all(prepared == finished == 0 for _, prepared, _, finished in lives)
    assert {point: miscounted(clickhouse.url_for(f"crash_{point}")) for point, *_ in lives} == {
        point: [] for point, *_ in lives
    }


def miscounted(url: str) -> list[object]:
    """Return what is not exactly as it was sent: raw rows, roll-up, heartbeats."""
    with open_store(url) as store:
        raw = store.query("SELECT seq, count() AS n FROM collectives GROUP BY seq ORDER BY seq").to_pylist()
        rolled = store.query("SELECT seq, sum(n) AS n FROM operations GROUP BY seq ORDER BY seq").to_pylist()
        beats = store.query("SELECT count() AS n FROM agents")["n"].to_pylist()
    wanted = [{"seq": number, "n": ROWS} for number in range(1, BATCHES + 1)]
    return [found for found, right in ((raw, wanted), (rolled, wanted), (beats, [BATCHES])) if found != right]
