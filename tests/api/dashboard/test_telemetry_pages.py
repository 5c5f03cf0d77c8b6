"""Pages over telemetry: a job with its ranks, who is slow, who is late, what would be done, and the machines."""

import json
import re
from pathlib import Path

import pytest

from api.dashboard.what_if import SUPPOSED_AGE_MIN, find_free, read_known
from api.views.checkpoints import open_folders
from lockstep.config import Settings
from lockstep.sections import PlannerSettings
from lockstep.store.store import Store
from lockstep.words import lasting
from tests.api.build import Api, running_api
from tests.api.dashboard.build import browse
from tests.api.views.build import load_job
from tests.planner.checkpoints.build import NOW_NS, OLD_NS, copy_real


def embedded(text: str, name: str) -> dict[str, list[object]]:
    """Return the data that a picture on the page is drawn from."""
    found = re.search(rf'<script type="application/json" id="{name}">(.*?)</script>', text, re.DOTALL)
    assert found
    data: dict[str, list[object]] = json.loads(found[1])
    return data


def test_job_is_listed_with_its_state_and_its_size(pages: Api) -> None:
    text = browse(pages, "/").text
    row = text[text.rindex('href="/job?job=train"') :]
    assert row.index(">slow<") < row.index("</tr>")
    assert 'href="/matrix?job=train"' in row[: row.index("</tr>")]


def test_job_page_shows_ranks_and_incidents(pages: Api) -> None:
    text = browse(pages, "/job", job="train").text
    assert "<b>4</b><span>ranks</span>" in text
    assert "train-h1" in text
    assert 'href="/incidents/i1"' in text
    assert "No training steps are known yet" in text


def test_matrix_page_draws_every_cell_and_names_the_slowest(pages: Api) -> None:
    text = browse(pages, "/matrix", job="train").text
    data = embedded(text, "matrix-data")
    assert (data["src"], data["dst"]) == ([0, 1, 2, 3], [1, 2, 3, 0])
    assert data["names"][2] == "2 · train-h1/0"
    slowest = text[text.index("Slowest pairs") :]
    first = slowest[slowest.index("<tr data-row>") :].partition("</tr>")[0]
    assert "rank 2 (train-h1/0)" in first
    assert "rank 3 (train-h1/1)" in first
    assert "3.00" in first  # times the usual


def test_matrix_of_a_window_has_an_address_of_its_own(pages: Api) -> None:
    text = browse(pages, "/matrix", job="train").text
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


@pytest.mark.parametrize("path", ["/job", "/matrix", "/lags", "/what-if"])
def test_unknown_job_is_said_on_a_page(pages: Api, path: str) -> None:
    answer = browse(pages, path, job="no/such <job>")
    assert answer.status_code == 404
    assert "no/such &lt;job&gt;" in answer.text


def test_stretch_that_runs_backwards_is_refused(pages: Api) -> None:
    assert browse(pages, "/matrix", job="train", from_ns=5, to_ns=1).status_code == 400


def test_what_if_prices_every_way_and_writes_nothing(pages: Api) -> None:
    asked: dict[str, str | int] = {
        "job": "train",
        "component": "host:train-h0",
        "what": "hung",
        "checkpoint_min": 10,
        "price": 2,
    }
    text = browse(pages, "/what-if", None, **asked, is_asked="true", can_restart="true", spares=1).text
    assert "The planner would say" in text
    assert "Restart with a spare" in text
    assert "no spare node is idle" not in text
    without = browse(pages, "/what-if", None, **asked, is_asked="true", spares=0).text
    assert "no spare node is idle" in without
    assert "no job controller is set that could restart it" in without
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


def test_what_if_about_nothing_is_refused_in_words(pages: Api) -> None:
    answer = browse(pages, "/what-if", job="train", component="moon")
    assert (answer.status_code, "is no part: say kind:name" in answer.text) == (400, True)


def test_part_has_its_history(pages: Api) -> None:
    assert "nic:h3/eth1" in browse(pages, "/parts").text
    one = browse(pages, "/parts", component="nic:h3/eth1").text
    assert 'href="/incidents/i1"' in one
    assert "No events for nic:h9/eth9" in browse(pages, "/parts", component="nic:h9/eth9").text


def test_scorecard_counts_only_what_is_confirmed(pages: Api) -> None:
    text = browse(pages, "/scorecard").text
    assert "No outcome is confirmed yet." in text
    assert "<b>1</b><span>incidents with advice</span>" in text


def test_agents_page_without_agents_says_what_to_do(pages: Api) -> None:
    assert "No agent has reported." in browse(pages, "/agents").text


def test_fabric_is_drawn_with_the_suspect_lit(fabric_pages: Api) -> None:
    text = browse(fabric_pages, "/topology").text
    assert text.count('<line class="cable suspect"') == 1
    assert "h3/eth1--leaf" in text
    assert "8 hosts, 4 switches" in text
    assert "No path plan was made." in text


def test_missing_topology_is_said(pages: Api) -> None:
    assert "Without one, verdicts stop at NICs and hosts." in browse(pages, "/topology").text


NO_SPARES = find_free((), (), ())


def test_age_of_the_newest_complete_checkpoint_is_the_default(tmp_path: Path) -> None:
    saved = copy_real("dcp", tmp_path / "train")
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    known = read_known(folders, "train", None, NO_SPARES, NOW_NS)
    assert known.checkpoint_min == round((NOW_NS - OLD_NS) / 60e9)
    age = lasting((NOW_NS - OLD_NS) / 1e9)
    assert known.checkpoint_from == (f"{saved}/step-200, saved {age} ago, the newest that is verified to be complete")
    assert known.is_this(known.checkpoint_min, known.load_s)
    assert not known.is_this(known.checkpoint_min + 1, known.load_s)


def test_where_no_checkpoint_is_known_one_is_supposed_and_it_is_said_why(tmp_path: Path) -> None:
    unset = read_known(None, "train", None, NO_SPARES, NOW_NS)
    assert (unset.checkpoint_min, unset.checkpoint_from) == (
        SUPPOSED_AGE_MIN,
        "supposed: planner.checkpoints is not set",
    )
    folders = open_folders(PlannerSettings(checkpoints=f"{tmp_path}/{{job}}"))
    empty = read_known(folders, "train", None, NO_SPARES, NOW_NS)
    assert empty.checkpoint_from == f"supposed: no checkpoint in {tmp_path}/train is verified to be complete"
    assert not empty.is_this(empty.checkpoint_min, empty.load_s)


def test_spares_that_are_out_or_in_use_are_not_free() -> None:
    assert find_free(("a", "b", "c"), {"a"}, {"b"}) == (
        ("c",),
        "1 of 3 in planner.spares: a is out of service, b runs a job",
    )
    assert find_free(("a",), (), ())[1] == "1 of 1 in planner.spares, none of them out of service or in use"
    assert NO_SPARES == ((), "planner.spares names none")
