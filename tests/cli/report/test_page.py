"""The page and its heat map: one file that asks for nothing, shows verdicts and timeline, and runs nobody's text."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import numpy as np
import pytest

from cli.report import Described, build_grid, level, render_page
from tests.cli.report.build import T0, described, found, matrix, steps

WHOLE = described(found(), of=matrix(), step_times=steps(1.0, 1.0, 2.0, 2.0))


class _Tags(HTMLParser):
    """Collects the tags of a page, with what they refer to."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.references: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.references += [f"{name}={value}" for name, value in attrs if name in ("src", "href", "data", "action")]


def pictures(page: str) -> list[ElementTree.Element]:
    """Return the drawings of a page; they have to be whole XML."""
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
    assert [(float(bar.get("x", "")), float(bar.get("width", ""))) for bar in bars] == [
        (225.0, 506.25),
        (450.0, 281.25),
    ]
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
