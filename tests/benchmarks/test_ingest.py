"""The plugin's benchmark measures every kind of callback beside the limit, and says what it cannot do without."""

from pathlib import Path

import pytest

from benchmarks import ingest
from benchmarks.figures import Figure
from lockstep.errors import NotPresent
from tests.testbed import ranks

KINDS = ["operation", "transfer", "unsampled-step", "sampled-step", "kernel-channel", "all-reduce"]


def test_every_kind_is_measured_on_one_thread_and_on_four_and_ring_files_are_gone_afterwards(
    built: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lent: list[str] = []
    original = ingest._run

    def remember(*command: str, **environment: str) -> str:
        lent.append(environment["LOCKSTEP_RING_DIR"])
        return original(*command, **environment)

    monkeypatch.setattr(ingest, "_run", remember)
    costs = ingest.play(built, rounds=2)

    assert set(costs) == {(kind, threads) for kind in KINDS for threads in (1, 4)}
    assert all(len(pairs) == 2 for pairs in costs.values())
    assert all(ours > 0 and limit > 0 for pairs in costs.values() for ours, limit in pairs)
    (folder,) = lent
    assert not Path(folder).exists()


def test_figures_are_medians_with_floor_and_goal_as_multiples_of_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = {"operation": [(30.0, 10.0), (90.0, 10.0), (10.0, 10.0)], "transfer": [(50.0, 10.0)]}
    costs = {(kind, threads): pair for kind, pair in pairs.items() for threads in (1, 4)}
    monkeypatch.setattr(ingest, "build_ranks", lambda folder: None)
    monkeypatch.setattr(ingest, "play", lambda folder, rounds: costs)
    notes: list[str] = []

    figures = ingest.measure_plugin(quick=True, note=notes.append)

    kinds = "an operation is enqueued", "a transfer"
    names = [f"{kind}, {threads}" for threads in ("one thread", "4 threads") for kind in kinds]
    assert [figure.name for figure in figures] == [*names, "dearest kind, one thread", "dearest kind, 4 threads"]
    expected = Figure(names[0], 30.0, "ns per callback", 40.0, 20.0, False, "limit 10.0 ns, 3.00 times")
    assert figures[0] == expected
    assert [figure.met for figure in figures] == [True, False, True, False, False, False]
    assert (figures[-1].value, figures[-1].floor, figures[-1].goal) == (5.0, 4.0, 2.0)
    assert len(notes) == 2


def test_machine_that_cannot_build_is_told_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.testbed.making.shutil.which", lambda tool: None)
    with pytest.raises(NotPresent, match="without make and cc"):
        ranks.build_ranks(tmp_path)
    monkeypatch.setattr("tests.testbed.making.shutil.which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(ranks, "PLUGIN_SOURCES", tmp_path)
    with pytest.raises(NotPresent, match="only a checkout has"):
        ranks.build_ranks(tmp_path)


def test_player_that_fails_is_reported_with_its_last_line(tmp_path: Path) -> None:
    player = tmp_path / "bench"
    player.write_text("#!/bin/sh\necho first\necho it does not hold\nexit 1\n")
    player.chmod(0o755)
    with pytest.raises(NotPresent, match="it does not hold"):
        ingest.play(tmp_path, rounds=1)
