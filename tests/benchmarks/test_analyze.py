"""Costs of windows become figures held against the claims; what was named counts as much as how fast."""

import pytest

import benchmarks.analyze
from analyzer.straggler.excess import measure_excess
from analyzer.straggler.kernels import Device
from benchmarks.analyze import (
    Cost,
    NumericCost,
    growth_exponent,
    is_equal,
    is_right,
    measure,
    measure_numeric,
    measure_scene,
    single_operations,
    sums_of_seconds,
)
from benchmarks.analyze_window import HEALTHY, HUNG, SLOW, PeerCost, Scene
from benchmarks.figures import Figure
from tests.tiers import long_except


def cost(ranks: int = 4_096, trouble: str = SLOW, *named: str, cpu_s: float = 0.5) -> Cost:
    return Cost(Scene(ranks, trouble), named, cpu_s, 0.3, 500.0, 1_000)


def test_exactly_the_broken_part_has_to_be_named() -> None:
    slow, other = "nic:h3/eth3", "nic:h9/eth0"
    right = (SLOW, slow), (SLOW, "link:h3/eth3--h4/eth3"), (HEALTHY,), (HUNG, "host:h3")
    wrong = (SLOW,), (SLOW, slow, other), (HEALTHY, slow), (HUNG, "host:h4")
    assert [is_right(cost(4_096, *told)) for told in (*right, *wrong)] == [True] * 4 + [False] * 4


def test_growth_is_the_slope_from_four_thousand_ranks_on() -> None:
    costs = [cost(1_024, cpu_s=9.0), cost(4_096, cpu_s=1.0), cost(65_536, cpu_s=256.0)]
    assert (growth_exponent(costs), growth_exponent(costs[:2])) == (2.0, None)


def core(ranks: int, *devices: Device) -> list[NumericCost]:
    return [
        NumericCost(ranks, 10, "numpy", 2.0, 3.0, True),
        *(NumericCost(ranks, 10, d, 0.2, 0.5, True) for d in devices),
    ]


def pretend(monkeypatch: pytest.MonkeyPatch, cpu_s: float, named: str, gpu: str | None = None) -> list[Scene]:
    """Stand in for the processes that make and judge windows, and return what they were asked."""
    asked: list[Scene] = []

    def judged(scene: Scene) -> Cost:
        asked.append(scene)
        says = {SLOW: (named,), HUNG: ("rank:27",), HEALTHY: ()}[scene.trouble]
        return Cost(scene, says, cpu_s, cpu_s / 2, 900.0, 10)

    def compared(ranks: int) -> tuple[Cost, PeerCost]:
        return cost(ranks, HUNG, "rank:27"), PeerCost(ranks, 2.4, frozenset({27, 24}))

    monkeypatch.setattr(benchmarks.analyze, "measure_scene", judged)
    monkeypatch.setattr(benchmarks.analyze, "measure_dumps", compared)
    monkeypatch.setattr(benchmarks.analyze, "small_job_figures", lambda jobs: ())
    monkeypatch.setattr(benchmarks.analyze, "in_own_process", lambda task, ranks, devices: core(ranks, *devices))
    monkeypatch.setattr(benchmarks.analyze, "find_device", lambda: gpu)
    return asked


def figures(quick: bool) -> dict[str, Figure]:
    return {figure.name: figure for figure in measure(quick, note=lambda _: None)}


@pytest.mark.parametrize(("cpu_s", "is_met"), [(0.9, True), (61.0, False)])
def test_floors_are_those_of_the_claim(cpu_s: float, is_met: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = pretend(monkeypatch, cpu_s, "nic:h3/eth3")
    found = figures(quick=False)
    assert {scene.ranks for scene in asked} == {1_024, 4_096, 16_384, 65_536, 1_000_000}
    for name in ("4,096 ranks, closed window to verdicts", "1,000,000 ranks, from statistics"):
        assert (found[name].value, found[name].met) == (cpu_s, is_met)
    assert found["windows judged right"].value == 100.0
    assert "900 MB" in found["65,536 ranks, closed window to verdicts"].reference


def test_quick_run_is_one_window_and_one_hang_and_says_what_is_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pretend(monkeypatch, 0.1, "nic:h3/eth3") == []
    asked = pretend(monkeypatch, 0.1, "nic:h3/eth3")
    found = figures(quick=True)
    assert asked == [Scene(1_024, SLOW)]
    assert found["hang, dumps of 64 ranks: torchfrtrace"].reference == "2 ranks called missing, 1 of them wrongly"
    assert found["hang, dumps of 64 ranks: Lockstep"].reference == "says rank:27"
    pretend(monkeypatch, 0.01, "nic:h9/eth0")
    assert figures(quick=True)["windows judged right"].met is False
    pretend(monkeypatch, 0.1, "nic:h3/eth3", gpu=None)
    found = figures(quick=True)
    assert found["numeric core, 65,536 ranks: numpy"].reference == "10 rows; no GPU here"
    assert not any("cuda" in name for name in found)


def test_gpu_stands_beside_numpy_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0.1, "nic:h3/eth3", gpu="cuda")
    found = figures(quick=False)
    assert found["numeric core, 1,000,000 ranks: numpy"].value == 2.0
    gpu = found["numeric core, 1,000,000 ranks: cuda"]
    assert (gpu.value, gpu.unit) == (0.5, "s")
    assert gpu.reference == "6.0 times as fast as numpy, copies included; figures of both are the same"


@pytest.mark.slow
@pytest.mark.parametrize("trouble", long_except([SLOW], [SLOW, HUNG, HEALTHY]))
def test_real_window_is_judged_right(trouble: str) -> None:
    window = measure_scene(Scene(512, trouble))
    assert is_right(window), window.named
    assert window.rows > 512 * 50
    assert window.peak_mb > 50


@pytest.mark.parametrize("are_sums", [False, True])
def test_late_rank_is_the_one_that_stands_out(are_sums: bool) -> None:
    rows = sums_of_seconds(64) if are_sums else single_operations(64)
    excess = measure_excess(rows, are_sums, 64, None)
    assert excess is not None
    assert int(excess.lasting.argmax()) == 27
    assert excess.lasting[27] > 5 * abs(excess.lasting[26])


@pytest.mark.slow
def test_core_is_the_same_on_torch_and_other_figures_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmarks.analyze, "_AGAIN", 1)
    plain, torch = measure_numeric(64, ("cpu",))
    assert (plain.device, torch.device) == ("numpy", "cpu")
    assert torch.is_same
    assert plain.rows == torch.rows == 64 * 15
    one, other = (measure_excess(single_operations(ranks), False, ranks, None) for ranks in (64, 128))
    assert is_equal(one, one)
    assert not is_equal(one, other)
    assert not is_equal(one, None)
