"""Recordings of real NCCL with faults get the verdict that their first line calls true, and healthy ones none."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from analyzer.diagnosis import diagnose
from analyzer.following import FollowOptions
from lockstep.capture.exchange import load_capture
from lockstep.capture.reading import read_capture
from lockstep.intake.callback_capture import import_callbacks
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from tests.conftest import REPO

RECORDINGS = sorted((REPO / "tests" / "data" / "nccl_recordings").glob("*.jsonl.xz"))


def truth_of(recording: Path) -> list[dict[str, Any]]:
    with lzma.open(recording, "rt") as lines:
        truth: list[dict[str, Any]] = json.loads(lines.readline())["truth"]
    return truth


@pytest.mark.slow
@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda path: path.name.removesuffix(".jsonl.xz"))
def test_recording_gets_its_verdict_and_no_other(
    recording: Path, embedded_store: Store, tmp_path: Path, plugin_library: Path
) -> None:
    import_callbacks([recording], tmp_path / "capture", plugin_library, lambda *_: None)
    capture = read_capture(tmp_path / "capture")
    load_capture(embedded_store, capture)
    topology = TopologyIndex(capture.topology) if capture.topology else None
    verdicts = [incident.verdict for incident in diagnose(embedded_store, topology, FollowOptions())]
    truth = truth_of(recording)
    assert len(verdicts) == len(truth), [verdict.reason for verdict in verdicts]
    for verdict, expected in zip(verdicts, truth, strict=True):
        assert verdict.fault_class in expected["class"]
        assert verdict.component in (expected["component"], *expected.get("accept", ()))
