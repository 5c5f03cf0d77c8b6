"""Recordings of real NCCL with faults get the verdict that their first line calls true, and healthy ones none."""

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from analyzer.diagnosis import diagnose
from analyzer.pipeline import FollowOptions
from importers.traces.callback_capture import Player, import_callbacks
from lockstep.capture.exchange import load_capture
from lockstep.capture.files import read_capture
from lockstep.store.store import Store
from lockstep.topology import TopologyIndex
from tests.conftest import REPO
from tests.tiers import long_except

FOLDER = REPO / "tests" / "data" / "nccl_recordings"
RECORDINGS = sorted(path.name.removesuffix(".jsonl.xz") for path in FOLDER.glob("*.jsonl.xz"))
TYPICAL = ("torch_ddp3_gpu_r2", "cp8_link_5to6", "dp4_sigstop_r1_live", "moe6_nicrx_h2", "tree6_healthy")


def truth_of(recording: Path) -> list[dict[str, Any]]:
    with lzma.open(recording, "rt") as lines:
        truth: list[dict[str, Any]] = json.loads(lines.readline())["truth"]
    return truth


@pytest.mark.slow
@pytest.mark.parametrize("name", long_except(TYPICAL, RECORDINGS))
def test_recording_gets_its_verdict_and_no_other(
    name: str, embedded_store: Store, tmp_path: Path, plugin_library: Path
) -> None:
    check_verdict(FOLDER / f"{name}.jsonl.xz", embedded_store, tmp_path, plugin_library)


STOOD = ("dp4_kernel_r2_live", "dp4_sigstop_r1_live", "cp8_sigstop_r0_live")


@pytest.mark.slow
@pytest.mark.parametrize("name", long_except(STOOD[:1], STOOD))
def test_who_does_not_come_is_named_though_no_step_was_sampled(
    name: str, embedded_store: Store, tmp_path: Path, plugin_library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Player.environment
    monkeypatch.setattr(Player, "environment", lambda *given: full(*given) | {"LOCKSTEP_SAMPLE": "0"})
    check_verdict(FOLDER / f"{name}.jsonl.xz", embedded_store, tmp_path, plugin_library)
    assert embedded_store.query("SELECT count() AS n FROM step_samples").to_pylist() == [{"n": 0}]


def check_verdict(recording: Path, embedded_store: Store, tmp_path: Path, plugin_library: Path) -> None:
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
