"""Pages and pictures over telemetry: a job, who is slow, who is late, what would be done, and the machines."""

import json
import re
from itertools import pairwise
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as some

from api.dashboard.pictures import draw_fabric, draw_heat, draw_sparkline, find_latest, find_slowest
from api.dashboard.what_if import SUPPOSED_AGE_MIN, find_free, read_known
from api.views.fabric import FabricView, LinkView, NodeView
from api.views.matrix import Cells, Lags, Matrix, Seat
from lockstep.config import Settings
from lockstep.fabrics import leaf_spine
from lockstep.records import PluginHealth
from lockstep.sections import PlannerSettings
from lockstep.state.fabric import publish_topology
from lockstep.store.store import Store
from lockstep.words import lasting
from planner.assembly import open_folders
from tests.api.build import Api, running_api
from tests.api.dashboard.build import ATTACK, SHOWN, browse
from tests.api.views.build import heartbeat, load_job, put
from tests.builders import make
from tests.planner.checkpoints.build import NOW_NS, OLD_NS, copy_real


def embedded(text: str, name: str) -> dict[str, list[object]]:
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.DOTALL)
    assert found
    data: dict[str, list[object]] = json.loads(found[1])
    return data


def test_job_is_listed_and_shown_with_its_ranks_and_incidents(pages: Api) -> None:
    text = browse(pages, "/").text
    row = text[text.rindex('href="/job?job=train"') :]
    assert row.index(">slow<") < row.index("</tr>")
    assert 'href="/matrix?job=train"' in row[: row.index("</tr>")]
    text = browse(pages, "/job", job="train").text
    assert "<b>4</b><span>ranks</span>" in text
    assert "train-h1" in text
    assert 'href="/incidents/i1"' in text
    assert "No training steps are known yet" in text


def test_matrix_page_draws_every_cell_and_names_the_slowest_and_has_an_address_of_its_own(pages: Api) -> None:
    text = browse(pages, "/matrix", job="train").text
    data = embedded(text, "matrix-data")
    assert (data["src"], data["dst"]) == ([0, 1, 2, 3], [1, 2, 3, 0])
    assert data["names"][2] == "2 · train-h1/0"
    slowest = text[text.index("Slowest pairs") :]
    first = slowest[slowest.index("<tr data-row>") :].partition("</tr>")[0]
    assert "rank 2 (train-h1/0)" in first
    assert "rank 3 (train-h1/1)" in first
    assert "3.00" in first  # times the usual
    link = re.search(r'href="(/matrix\?job=train&amp;from_ns=\d+&amp;to_ns=\d+)"', text)
    assert link
    fixed = browse(pages, link[1].replace("&amp;", "&")).text
    assert embedded(fixed, "matrix-data") == embedded(text, "matrix-data")
    assert "link to this window" not in fixed


def test_arrivals_name_the_rank_that_everybody_waits_for(pages: Api) -> None:
    text = browse(pages, "/lags", job="train").text
    assert len(embedded(text, "strip-data")["lag_ms"]) == 4
    latest = text[text.index("Latest ranks") :]
    first = latest[latest.index("<tr data-row>") :].partition("</tr>")[0]
    assert '<th scope="row" class="number">3</th>' in first


def test_unknown_job_and_bad_questions_are_refused_in_words(pages: Api) -> None:
    for path in ("/job", "/matrix", "/lags", "/what-if"):
        answer = browse(pages, path, job="no/such <job>")
        assert (answer.status_code, "no/such &lt;job&gt;" in answer.text) == (404, True)
    assert browse(pages, "/matrix", job="train", from_ns=5, to_ns=1).status_code == 400
    answer = browse(pages, "/what-if", job="train", component="moon")
    assert (answer.status_code, "is no part: say kind:name" in answer.text) == (400, True)


def test_what_if_prices_every_way_and_writes_nothing(pages: Api) -> None:
    asked: dict[str, str | int] = {"job": "train", "component": "host:train-h0", "what": "hung", "price": 2}
    asked |= {"checkpoint_min": 10, "is_asked": "true"}
    text = browse(pages, "/what-if", None, **asked, can_restart="true", spares=1).text
    assert "The planner would say" in text
    assert "Restart with a spare" in text
    assert "no spare node is idle" not in text
    without = browse(pages, "/what-if", None, **asked, spares=0).text
    assert "no spare node is idle" in without
    assert "no job controller is set that could have the job try again" in without
    assert "Try again in place" in text
    assert "(not at severity 2)" in text
    assert [each["id"] for each in pages.get("/api/v1/decisions").json()["items"]] == ["d1"]


def test_what_if_begins_with_the_job_s_own_checkpoint_and_says_so(tmp_path: Path, shared_store: Store) -> None:
    load_job(shared_store, "saves")
    saved = copy_real("dcp", tmp_path / "saved" / "saves")
    planner = PlannerSettings(checkpoints=f"{tmp_path}/saved/{{job}}", spares=("s1", "s2"))
    with running_api(tmp_path, shared_store, settings=Settings(planner=planner)) as api:
        text = browse(api, "/what-if", job="saves").text
        assert f"{saved}/step-200, saved " in text
        assert " ago, the newest that is verified to be complete" in text
        assert "2 of 2 in planner.spares, none of them out of service or in use" in text
        assert '<output id="age-shown">30</output>' not in text
        own = browse(api, "/what-if", job="saves", checkpoint_min=7, spares=1).text
        assert own.count("as you set it") == 2
        assert "step-200, saved" not in own


def test_part_has_its_history_and_pages_without_facts_say_so(pages: Api) -> None:
    assert "nic:h3/eth1" in browse(pages, "/parts").text
    one = browse(pages, "/parts", component="nic:h3/eth1").text
    assert 'href="/incidents/i1"' in one
    assert "No events for nic:h9/eth9" in browse(pages, "/parts", component="nic:h9/eth9").text
    text = browse(pages, "/scorecard").text
    assert "No outcome is confirmed yet." in text
    assert "<b>1</b><span>incidents with advice</span>" in text
    assert "No agent has reported." in browse(pages, "/agents").text
    now_ns = pages.parts.clock.now_ns()
    put(pages.parts.store, [heartbeat("a0", now_ns), heartbeat("a1", now_ns)])
    put(pages.parts.store, [make(PluginHealth, host="a0", ts_ns=now_ns, callback_ppm=1_200, lost=3)])
    text = browse(pages, "/agents").text
    assert "<td>1 steps, 0.12 %, 3 records lost</td>" in text
    assert "<td>none</td>" in text


def test_fabric_is_drawn_with_the_suspect_lit_once_it_is_known(pages: Api) -> None:
    assert "Without one, verdicts stop at NICs and hosts." in browse(pages, "/topology").text
    topology = leaf_spine(hosts=8, nics_per_host=2, leaves=2, spines=2)
    publish_topology(pages.parts.control, topology, source="x", now_ns=1)
    text = browse(pages, "/topology").text
    assert text.count('<line class="cable suspect"') == 1
    assert "h3/eth1--leaf" in text
    assert "8 hosts, 4 switches" in text
    assert "No path plan was made." in text


NO_SPARES = find_free((), (), ())


def test_newest_complete_checkpoint_is_the_default_and_where_none_is_one_is_supposed(tmp_path: Path) -> None:
    unset = read_known(None, "train", None, NO_SPARES, NOW_NS)
    because = "supposed: planner.checkpoints is not set"
    assert (unset.checkpoint_min, unset.checkpoint_from) == (SUPPOSED_AGE_MIN, because)
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    empty = read_known(folders, "train", None, NO_SPARES, NOW_NS)
    assert empty.checkpoint_from == f"supposed: no checkpoint in {tmp_path}/train is verified to be complete"
    assert not empty.is_this(empty.checkpoint_min, empty.load_s)
    saved = copy_real("dcp", tmp_path / "train")
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    known = read_known(folders, "train", None, NO_SPARES, NOW_NS)
    assert known.checkpoint_min == round((NOW_NS - OLD_NS) / 60e9)
    age = lasting((NOW_NS - OLD_NS) / 1e9)
    assert known.checkpoint_from == (f"{saved}/step-200, saved {age} ago, the newest that is verified to be complete")
    assert known.is_this(known.checkpoint_min, known.load_s)
    assert not known.is_this(known.checkpoint_min + 1, known.load_s)


def test_spares_that_are_out_or_in_use_are_not_free() -> None:
    told = "1 of 3 in planner.spares: a is out of service, b runs a job"
    assert find_free(("a", "b", "c"), {"a"}, {"b"}) == (("c",), told)
    assert find_free(("a",), (), ())[1] == "1 of 1 in planner.spares, none of them out of service or in use"
    assert NO_SPARES == ((), "planner.spares names none")


def matrix(ranks: int, ms: dict[tuple[int, int], float], host: str = "h0") -> Matrix:
    cells = Cells(src=tuple(a for a, _ in ms), dst=tuple(b for _, b in ms), ms=tuple(ms.values()))
    seats = tuple(Seat(rank=rank, host=host, gpu=rank % 8) for rank in range(ranks))
    return Matrix(job="train", attempt=0, from_ns=0, to_ns=1, ranks=seats, cells=cells, usual_ms=1.0)


def fabric(hosts: int, suspect: str = "") -> FabricView:
    nodes = [NodeView(id=f"h{n}", kind="host", suspects=("i1",) if suspect == f"h{n}" else ()) for n in range(hosts)]
    links = [
        LinkView(id=f"h{n}--leaf0", component="c", a=f"h{n}/eth0", b="leaf0", gbps=1, up=n != 1, planned_flows=0)
        for n in range(hosts)
    ]
    leaf = NodeView(id="leaf0", kind="switch", tier="leaf")
    return FabricView(routing="ecmp", nodes=(leaf, *nodes), links=tuple(links))


def test_curve_leaves_a_first_step_that_was_cut_short_below_the_picture() -> None:
    points = [(number, 0.01 if number == 0 else 1.0) for number in range(40)]
    drawn = draw_sparkline(points, [(20, 39)], "steps")
    assert "M0.0,40.0 " in drawn
    assert drawn.count('class="fault"') == 1
    assert draw_sparkline([(1, 1.0)], [], "steps") == ""


@given(some.lists(some.floats(0, 1e6), min_size=2, max_size=30))
def test_curve_stays_inside_of_its_picture(seconds: list[float]) -> None:
    drawn = str(draw_sparkline(list(enumerate(seconds)), [], "steps"))
    places = [tuple(map(float, place.split(","))) for place in drawn.partition('d="M')[2].partition('"')[0].split()]
    assert all(0 <= x <= 200 and 0 <= y <= 40 for x, y in places)
    assert all(left[0] <= right[0] for left, right in pairwise(places))


def test_large_matrix_is_drawn_small_and_shows_the_worst_of_each_cell() -> None:
    usual = {(rank, (rank + 1) % 1024): 1.0 for rank in range(1024)}
    large = matrix(1024, usual | {(700, 701): 9.0})
    drawn = draw_heat(large)
    assert drawn.count("<rect") <= 1 + 2 * 48
    assert drawn.count('class="heat-4"') == 1
    assert find_slowest(large, 1)[0].source == "rank 700 (h0/4)"


def test_names_in_pictures_are_escaped() -> None:
    assert SHOWN in draw_heat(matrix(2, {(0, 1): 1.0}, host=ATTACK))
    assert "<script>" not in draw_sparkline([(0, 1.0), (1, 1.0)], [], ATTACK)


def test_suspect_and_dead_cables_are_told_apart_and_many_hosts_share_a_box() -> None:
    drawn = draw_fabric(fabric(4, suspect="h2"), {"h0--leaf0": 0.9})
    assert 'class="cable line-3"' in drawn
    assert 'class="cable down"' in drawn
    assert drawn.count('class="node suspect"') == 1
    drawn = draw_fabric(fabric(500, suspect="h77"), {})
    assert drawn.count("<rect") == 3  # the leaf, the suspect, all others
    assert "499 hosts" in drawn


def test_latest_ranks_come_first_and_silent_ones_not_at_all() -> None:
    seats = tuple(Seat(rank=rank, host="h0") for rank in range(3))
    lag_ms = ((1.0, None), (None, None), (5.0, 7.0))
    lags = Lags(job="j", attempt=0, ranks=seats, times_ns=(0, 1), column_ns=1, lag_ms=lag_ms)
    found = find_latest(lags, 5)
    assert [(each.rank, each.median_ms, each.most_ms) for each in found] == [(2, 6.0, 7.0), (0, 1.0, 1.0)]
    assert found[0].over_others_ms == 2.5
