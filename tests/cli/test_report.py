"""A report on a terminal is a table, sentences and a small picture; its page is one file that runs nobody's text."""

import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from analyzer.delay_matrix.matrix import DelayMatrix, Pair
from analyzer.windows.window import End
from cli.report import (
    Described,
    OnlyIncidents,
    StepTimes,
    build_grid,
    coverage_words,
    lasting_words,
    level,
    part_words,
    print_report,
    render_page,
)
from cli.setup import CleanConsole
from lockstep.clock import NS_PER_S
from lockstep.verdict import FaultClass, Impact, Incident, RuledOut
from lockstep.words import impact_words
from tests.lockstep.state.build import incident

T0 = 1_700_000_000 * NS_PER_S


def found(
    since_s: float = 20, last_s: float = 65, flaps: int = 0, **words: Any
) -> Incident:  # Any: fields of Verdict
    """An incident on nic:h3/eth1 from second 20 to 65; words replace fields of its verdict."""
    told = incident("i1", job="train")
    times = {"since_ns": T0 + int(since_s * NS_PER_S), "last_seen_ns": T0 + int(last_s * NS_PER_S)}
    verdict = told.verdict.model_copy(update=times | words)
    return told.model_copy(update={"verdict": verdict, "flaps": flaps})


def cost(ratio: float | None, waiting: int) -> Impact:
    return Impact(step_time_ratio=ratio, ranks_waiting=waiting, gpus=waiting)


def matrix(hosts: int = 8, nics: int = 4, slow: tuple[int, int] | None = (3, 1)) -> DelayMatrix:
    """Every NIC sends to the same NIC of the next host; one, when told, at four times the normal delay."""
    ends = [(host, nic) for host in range(hosts) for nic in range(nics)]
    wires = [(f"h{host}", f"h{(host + 1) % hosts}", f"eth{nic}") for host, nic in ends]
    pairs = tuple(Pair(End(source, nic), End(target, nic)) for source, target, nic in wires)
    ratio = np.array([4.0 if end == slow else 1.0 for end in ends])
    ones = np.ones(len(ratio))
    return DelayMatrix(
        *(pairs, frozenset({"ib"}), ratio, (ratio - 1) / 0.05, ratio > 2, 0.02 * ratio),
        *(0 * ones, 9 * ones, ones, ones < 1, ones > 0),
    )


def steps(*lengths: float) -> StepTimes:
    return [(T0 + number * NS_PER_S, length) for number, length in enumerate(lengths)]


def described(*incidents: Incident, of: DelayMatrix | None = None, step_times: StepTimes = ()) -> OnlyIncidents:
    return OnlyIncidents(incidents, of, step_times)


def printed(diagnosis: Described, width: int = 160) -> list[str]:
    console = CleanConsole(file=io.StringIO(), width=width)
    print_report(console, diagnosis)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_nothing_that_others_wrote_moves_the_cursor_or_breaks_a_line_of_ours() -> None:
    told = found(component="nic:h3/\x1b[2Jeth1", reason="[/red] \x1b]0;gone\x07 \u202eback \x9b1m")
    lines = printed(described(told))
    assert not [letter for line in lines for letter in line if not letter.isprintable()]
    assert "  [/red] \ufffd]0;gone \ufffdback \ufffd1m" in lines


def test_every_verdict_is_a_row_and_a_sentence_with_doubts_below() -> None:
    gpu = found(component="gpu:h5/2", side=None, fault_class="noncomm_slow", grade="alert", reason="its clock is low")
    lines = printed(described(found(impact=cost(1.5, 63)), gpu))
    assert lines[0].split() == ["part", "fault", "sure", "grade", "since", "lasted", "cost"]
    assert lines[1].split()[:6] == ["1", "nic:h3/eth1", "tx", "comm_slow", "97", "%"]
    assert "45 s" in lines[1]
    assert "steps take 1.50 times as long, 63 ranks wait, 0.26 GPU-hours lost" in lines[1]
    first = next(number for number, line in enumerate(lines) if line.startswith("1 nic:h3/eth1 slows what it sends"))
    assert lines[first].endswith(" UTC: steps take 1.50 times as long, 63 ranks wait, 0.26 GPU-hours lost")
    assert lines[first + 1] == "  h3's eth1 sends at a tenth of its rate, says Zoë"
    assert "  its clock is low" in lines
    cleared = tuple(RuledOut(component=f"nic:h{number}/eth0", because="fast") for number in range(9))
    lines = printed(described(found(ruled_out=cleared, coverage=1.0)))
    assert lines[-2:] == ["  not nic:h2/eth0: fast", "  and 6 others ruled out"]


def test_nothing_found_or_nothing_that_stands_out_is_one_line() -> None:
    (line,) = printed(described())
    assert line == "no verdict: nothing stands out in what was recorded, which is silence, not proof of health"
    lines = printed(described(of=matrix(slow=None)))
    assert lines[-1] == "no wire stands out among 32 that were compared"


def test_matrix_has_the_slow_ends_beside_the_dark_cell_and_fits_onto_a_screen() -> None:
    lines = printed(described(found(), of=matrix(hosts=6, nics=1, slow=(3, 0))))
    begin = lines.index("delay by sender (down) and receiver (across)")
    assert lines[begin + 1].split() == ["▼", "h4/eth0"]
    assert lines[begin + 5] == "h3/eth0 ········██·· ◀ h3/eth0: 4.0 times the normal delay"
    assert lines[begin + 2] == "h0/eth0 ··░░········"
    assert lines[begin + 1].index("▼") == lines[begin + 5].index("█")
    lines = printed(described(found(), of=matrix(hosts=512, nics=8, slow=(300, 5))), width=80)
    begin = next(number for number, line in enumerate(lines) if line.startswith("delay by sender"))
    assert lines[begin].endswith("171 NICs a cell")
    assert len(lines) - begin < 30
    assert sum("h300/eth5: 4.0 times the normal delay" in line for line in lines) == 1


def test_step_times_are_a_row_of_bars_of_which_the_longest_shows() -> None:
    line = printed(described(step_times=steps(1, 1, 1, 2, 2, 1)))[-1]
    assert line == "step time ▅▅▅██▅ 1 to 2 s"
    line = printed(described(step_times=steps(*[1.0] * 999, 4.0)))[-1]
    assert line.startswith("step time ▃")
    assert line.endswith("█ 1 to 4 s")
    assert len(line) < 80
    assert printed(described(step_times=steps(0.0, 0.0)))[-1] == "step time ▁▁ 0 to 0 s"


STANDSTILL = "the job stands still, 64 ranks wait, 32 GPU-hours lost"
SLOWNESS = "steps take 1.25 times as long, 1,000 ranks wait, 200 GPU-hours lost"


@pytest.mark.parametrize(
    ("lasted_s", "fault_class", "impact", "hours", "words"),
    [
        (3_600, "comm_slow", cost(1.25, 1_000), 200.0, SLOWNESS),
        *((1_800, hang, cost(None, 64), 32.0, STANDSTILL) for hang in ("comm_hang", "noncomm_hang", "crash")),
        (45, "comm_slow", cost(None, 0), None, "what it costs is not known"),
        (3_600, "comm_slow", cost(0.5, 10), 0.0, "10 ranks wait"),
        (36, "comm_slow", cost(2.0, 1), 0.005, "steps take 2.00 times as long, 1 rank waits, 0.005 GPU-hours lost"),
    ],
)
def test_cost_is_step_time_ranks_and_hours_as_far_as_they_are_known(
    lasted_s: float, fault_class: FaultClass, impact: Impact, hours: float | None, words: str
) -> None:
    verdict = found(0, lasted_s, fault_class=fault_class, impact=impact).verdict
    assert verdict.lost_gpu_hours() == (None if hours is None else pytest.approx(hours))
    assert impact_words(verdict) == words


def test_part_duration_and_silent_hosts_are_said_as_people_say_it() -> None:
    assert part_words(found(side=None).verdict) == "nic:h3/eth1"
    assert lasting_words(found(0, 90)) == "1 min 30 s"
    assert lasting_words(found(0, 90, flaps=3)) == "1 min 30 s, came back 3 times"
    assert coverage_words(found(coverage=1.0).verdict) == ""
    assert coverage_words(found(coverage=0.75).verdict) == "25 % of the job's hosts sent no telemetry"


WHOLE = described(found(), of=matrix(), step_times=steps(1.0, 1.0, 2.0, 2.0))


class _Tags(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "data", "action")]


def pictures(page: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(text) for text in re.findall(r"<svg.*?</svg>", page, re.DOTALL)]


@pytest.mark.parametrize("diagnosis", [WHOLE, described(), described(found()), described(of=matrix(512, 8))])
def test_page_asks_for_nothing_and_runs_nothing(diagnosis: Described) -> None:
    page = render_page(diagnosis, "case.tar.zst")
    found_tags = _Tags(page)
    assert not {"script", "link", "img", "iframe"} & set(found_tags.tags)
    assert found_tags.references == []
    assert "url(" not in page
    assert page.startswith("<!doctype html>")
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in page


def test_verdict_has_its_sentence_figures_and_doubts() -> None:
    page = render_page(WHOLE, "case.tar.zst")
    for text in (
        "nic:h3/eth1 tx",
        "h3&#39;s eth1 sends at a tenth of its rate, says Zoë",
        "97 %, grade isolate",
        "2023-11-14T22:13:40Z to 2023-11-14T22:14:25Z, 45 s",
        "steps take 1.42 times as long",
        "link:h3/eth1--leaf1",
        "link:leaf1--spine2: others cross it at full rate",
        "rate_gbps: 38.5",
        "1 % of the job&#39;s hosts sent no telemetry",
    ):
        assert text in page


def test_text_of_others_cannot_become_markup() -> None:
    nasty = "</title><script>alert(1)</script>"
    page = render_page(described(found(reason=nasty, component=f"nic:{nasty}", evidence=({nasty: nasty},))), nasty)
    assert "script" not in _Tags(page).tags
    assert page.count("&lt;script&gt;") >= 4
    assert len(pictures(page)) == 1


def test_heat_map_has_a_cell_for_each_wire_and_marks_the_slow_one() -> None:
    _, heat = pictures(render_page(WHOLE, "x"))
    cells = [cell for cell in heat.iter() if cell.get("class", "").startswith("l")]
    (slow,) = [cell for cell in cells if "slow" in cell.get("class", "")]
    assert len(cells) == 32
    assert slow[0].text == "h3/eth1 to h4/eth1: 4.00 times the normal delay"
    assert [text.text for text in heat.iter("text")] == ["h3/eth1", "h4/eth1"]


def test_timeline_has_a_bar_for_each_incident_and_a_curve_of_step_times_that_is_thinned() -> None:
    later = found(40, 65, component="gpu:h1/0", side=None, grade="alert")
    timeline, *_ = pictures(render_page(described(found(), later, step_times=steps(*[1.0] * 81)), "x"))
    bars = [bar for bar in timeline.iter("rect") if bar.get("class", "").startswith("grade-")]
    assert [bar.get("class") for bar in bars] == ["grade-isolate", "grade-alert"]
    places = [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars]
    assert places == [(225.0, 506.25), (450.0, 281.25)]
    (curve,) = timeline.iter("polyline")
    assert len(curve.get("points", "").split()) == 81
    lengths = [1.0] * 10_000
    lengths[5_001] = 2.0
    timeline, *_ = pictures(render_page(described(step_times=steps(*lengths)), "x"))
    points = [point.split(",") for point in next(timeline.iter("polyline")).get("points", "").split()]
    assert len(points) <= 2_000
    assert min(float(y) for _, y in points) == 0.0
    assert len(pictures(render_page(described(step_times=[(T0, 1.0)]), "x"))) == 1


def test_what_is_not_known_is_said_and_no_picture_is_drawn() -> None:
    page = render_page(described(), "x")
    assert "silence, not proof of health" in page
    assert pictures(page) == []
    assert "step times are not known" in render_page(described(found()), "x")


def test_cells_are_in_the_order_of_their_numbers_and_of_a_bin_the_worst_shows() -> None:
    grid = build_grid(matrix(hosts=12, nics=1, slow=(2, 0)), largest=20)
    assert grid is not None
    assert grid.rows == grid.columns == tuple(f"h{number}/eth0" for number in range(12))
    assert grid.ratio[2, 3] == 4.0
    assert np.isnan(grid.ratio[3, 2])
    assert np.argwhere(grid.slow).tolist() == [[2, 3]]
    grid = build_grid(matrix(hosts=100, nics=8, slow=(57, 5)), largest=16)
    assert grid is not None
    assert grid.ratio.shape == (16, 16)
    assert (grid.ends_per_cell, grid.pairs) == (50, 800)
    assert grid.slowest is not None
    assert (grid.slowest.source, grid.slowest.target, grid.slowest.ratio) == ("h57/eth5", "h58/eth5", 4.0)
    assert grid.slow[grid.slowest.row, grid.slowest.column]
    assert grid.rows[0] == "h0/eth0 … h6/eth1"


def test_matrix_without_slow_wires_or_with_nothing_compared_has_no_slowest() -> None:
    grid = build_grid(matrix(slow=None), largest=16)
    assert grid is not None
    assert grid.slowest is None
    plain = matrix(hosts=3, nics=1, slow=(0, 0))
    grid = build_grid(replace(plain, ratio=np.array([np.nan, 1.0, np.inf])), largest=8)
    assert grid is not None
    assert np.isfinite(grid.ratio).sum() == 1
    assert grid.slowest is None
    assert not grid.slow.any()
    assert build_grid(None, 16) is None
    assert build_grid(matrix(hosts=0), 16) is None
    assert [level(ratio) for ratio in (float("nan"), 0.9, 1.2, 1.6, 9.0)] == [0, 1, 2, 3, 4]
