"""What the head knew of real jobs that had a wrong page gives one incident, of the part at fault, to the end."""

import pytest

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import read_capture
from lockstep.store.store import Store
from tests.conftest import REPO


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("ddp_nic", ("comm_slow", "nic:h1/eth0", "open")),
        ("ddp_nic_buffered", ("comm_slow", "nic:h1/eth0", "open")),
        ("ddp_kernel", ("noncomm_hang", "gpu:h4/0", "open")),
    ],
)
def test_live_job_has_one_incident_that_lasts(name: str, told: tuple[str, str, str], embedded_store: Store) -> None:
    load_capture(embedded_store, read_capture(REPO / "tests" / "data" / "live_captures" / f"{name}.tar.zst"))
    incidents = diagnose(embedded_store, None, FollowOptions())
    found = [(each.verdict.fault_class, each.verdict.component, each.state) for each in incidents]
    assert found == [told]
