"""A job of one replica and one stage in a folder of its own, whose beats are quick."""

from pathlib import Path

import pytest

from lockstep.training.meeting import TrainingOptions

MICRO_BATCHES = 4


@pytest.fixture
def options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TrainingOptions:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    return TrainingOptions(tmp_path / "job", "train", 0, 1, MICRO_BATCHES, beat_s=0.01, silence_s=0.1)
