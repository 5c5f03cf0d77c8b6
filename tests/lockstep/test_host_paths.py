"""Net plugins find in a whole file the ports that the plan has for their queue pairs."""

from pathlib import Path
from typing import Any

import pytest

from lockstep.host_paths import HostPaths, PathChoice, write_queue_pairs

USUAL: dict[str, Any] = {  # Any: fields of several types
    "connection": "j/q0",
    "nic": "mlx5_0",
    "dst": "h1",
    "dst_nic": "mlx5_0",
    "links": ("leaf0--spine0",),
    "proto": "roce",
    "source": "10.0.0.1",
    "destination": "10.0.0.2",
    "dport": 4791,
    "sports": (49_152,),
}


@pytest.mark.parametrize(
    ("choices", "is_enforceable", "lines"),
    [
        ([{}], True, ["10.0.0.1 10.0.0.2 49152 1 j/q0"]),
        (
            [{"sports": (49_160, 49_161)}, {"connection": "job 1/q1", "weight": 0.12345}],
            True,
            ["10.0.0.1 10.0.0.2 49160 1 j/q0", "10.0.0.1 10.0.0.2 49152 0.123 job%201/q1"],
        ),
        ([{"sports": ()}, {"source": None}, {"destination": None}, {"proto": "tcp"}], True, []),
        ([{}], False, []),  # switches choose
    ],
)
def test_queue_pairs_come_in_the_order_of_the_plan_marked_as_advice(
    choices: list[dict[str, Any]], is_enforceable: bool, lines: list[str], tmp_path: Path
) -> None:
    made = tuple(PathChoice.model_validate({**USUAL, **fields}) for fields in choices)
    ages = {"generation": 7, "made_ns": 1, "lease_end_ns": 90 * 10**9}
    write_queue_pairs(tmp_path / "plan", HostPaths(host="h0", is_enforceable=is_enforceable, choices=made, **ages))
    whole = ["lockstep-queue-pairs 1 7 90 advisory", *lines, f"end {len(lines)}", ""]
    assert (tmp_path / "plan").read_text().split("\n") == whole
