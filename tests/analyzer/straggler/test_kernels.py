"""Every device gives what numpy gives, bit for bit, and numpy gives what the words say."""

import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import analyzer.straggler.kernels
from analyzer.straggler.kernels import Device, Kernels, NumericOptions, NumpyKernels, choose_kernels, find_device
from lockstep.errors import NotPresent

# A machine without a GPU has one device less to agree with numpy; nothing is skipped.
DEVICES: list[Device] = ["cpu", "cuda"] if find_device() else ["cpu"]
NUMPY = NumpyKernels()


whole = st.integers(-(2**40), 2**40)
rows = st.lists(st.tuples(whole, st.integers(0, 5), st.integers(0, 3)), min_size=1, max_size=60)
times = st.one_of(st.floats(-1e15, 1e15), st.just(float("nan")), st.sampled_from([0.0, -0.0, 7.0]))
timed = st.lists(st.tuples(times, st.integers(0, 6)), min_size=1, max_size=60)


def on(device: Device) -> Kernels:
    return choose_kernels(1, NumericOptions(device=device, fewest_rows=0))


def columns(told: list[tuple[int, int, int]]) -> list[np.ndarray]:
    return [np.array(column, np.int64) for column in zip(*told, strict=True)]


def groups(told: list[tuple[float, int]]) -> tuple[np.ndarray, np.ndarray, int]:
    values, keys = (np.array(column) for column in zip(*told, strict=True))
    group, count = NUMPY.number(keys)
    return values.astype(np.float64), group, count


def by_group(values: np.ndarray, group: np.ndarray) -> dict[int, list[float]]:
    found: dict[int, list[float]] = defaultdict(list)
    for value, number in zip(values.tolist(), group.tolist(), strict=True):
        found[number].append(value)
    return found


@given(rows)
def test_equal_rows_have_equal_numbers_and_others_have_not(told: list[tuple[int, int, int]]) -> None:
    numbers, count = NUMPY.number(*columns(told))
    assert len(set(zip(told, numbers.tolist(), strict=True))) == len(set(told)) == count
    assert set(numbers.tolist()) == set(range(count))


@given(timed, st.booleans())
def test_median_is_the_one_in_the_middle_and_nan_is_last(told: list[tuple[float, int]], upper: bool) -> None:
    values, group, count = groups(told)
    medians = NUMPY.median_by(values, group, count, upper=upper)
    for number, members in by_group(values, group).items():
        ordered = np.sort(members)
        middle = ordered[len(ordered) // 2 if upper else (len(ordered) - 1) // 2]
        assert np.array_equal(medians[number], middle, equal_nan=True)


@given(st.lists(st.tuples(whole, st.integers(0, 6)), min_size=1))
def test_sums_and_extremes_are_those_of_each_group(told: list[tuple[int, int]]) -> None:
    values, group = (np.array(column) for column in zip(*told, strict=True))
    sums, largest, smallest = (
        NUMPY.sum_by(values, group, 8),
        NUMPY.max_by(values, group, 8, -(2**41)),
        NUMPY.min_by(values, group, 8, 2**41),
    )
    members = by_group(values, group)
    assert sums.tolist() == [sum(members[number]) for number in range(8)]
    assert largest.tolist() == [max(members[number], default=-(2**41)) for number in range(8)]
    assert smallest.tolist() == [min(members[number], default=2**41) for number in range(8)]


@pytest.mark.parametrize("device", DEVICES)
@given(told=rows, times=timed, upper=st.booleans())
def test_numbers_and_medians_are_the_same_on_every_device(
    device: Device, told: list[tuple[int, int, int]], times: list[tuple[float, int]], upper: bool
) -> None:
    expected, count = NUMPY.number(*columns(told))
    numbers, counted = on(device).number(*columns(told))
    assert (numbers.tolist(), counted) == (expected.tolist(), count)
    values, group, count = groups(times)
    found, medians = (each.median_by(values, group, count, upper=upper) for each in (on(device), NUMPY))
    assert np.array_equal(found, medians, equal_nan=True)
    comms = np.array([2**64 - 1, 3, 2**63, 2**63 - 1, 3], np.uint64)  # above the signed range
    assert on(device).number(comms)[0].tolist() == NUMPY.number(comms)[0].tolist()


@pytest.mark.parametrize("device", DEVICES)
@given(told=st.lists(st.tuples(whole, st.integers(0, 6)), min_size=1))
def test_sums_and_extremes_are_the_same_on_every_device(device: Device, told: list[tuple[int, int]]) -> None:
    values, group = (np.array(column) for column in zip(*told, strict=True))
    theirs = on(device)
    assert np.array_equal(theirs.sum_by(values, group, 8), NUMPY.sum_by(values, group, 8))
    assert np.array_equal(theirs.max_by(values, group, 8, -(2**41)), NUMPY.max_by(values, group, 8, -(2**41)))
    assert np.array_equal(theirs.min_by(values, group, 8, 2**41), NUMPY.min_by(values, group, 8, 2**41))


def test_few_rows_stay_on_numpy_and_many_go_to_the_gpu_where_there_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(choose_kernels(1_000, NumericOptions(device="cuda")), NumpyKernels)
    monkeypatch.setattr(analyzer.straggler.kernels, "find_device", lambda: None)
    assert isinstance(choose_kernels(10**7, NumericOptions()), NumpyKernels)
    monkeypatch.setattr(analyzer.straggler.kernels, "find_device", lambda: "cpu")
    assert not isinstance(choose_kernels(10**7, NumericOptions()), NumpyKernels)


def test_torch_is_not_loaded_for_a_small_job() -> None:
    asked = "import sys; from analyzer.straggler import stragglers; from analyzer.straggler.kernels import *; "
    asked += "choose_kernels(99_999, NumericOptions()); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", asked], check=False).returncode == 0


@pytest.fixture
def _without_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "analyzer.straggler.torch_kernels", raising=False)
    monkeypatch.setattr(analyzer.straggler.kernels, "_DRIVER", tmp_path)  # there is a GPU
    for cached in (find_device, analyzer.straggler.kernels._torch_kernels):
        cached.cache_clear()
    yield
    find_device.cache_clear()


@pytest.mark.usefixtures("_without_torch")
def test_gpu_without_torch_leaves_the_work_to_numpy() -> None:
    assert isinstance(choose_kernels(10**7, NumericOptions()), NumpyKernels)


@pytest.mark.usefixtures("_without_torch")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_device_that_needs_torch_says_which_extra_to_install(device: Device) -> None:
    with pytest.raises(
        NotPresent, match=rf"analyzer.device is {device}, which needs torch: .*lockstep\[analyzer-gpu\]"
    ):
        choose_kernels(10**7, NumericOptions(device=device))
