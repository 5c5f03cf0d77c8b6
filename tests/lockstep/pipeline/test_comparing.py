"""Pictures of schedules are whole SVG, say in words what they show, and mark what has failed."""

from xml.etree import ElementTree

from lockstep.pipeline.comparing import describe, draw_schedule
from lockstep.pipeline.dispatch import ScheduleOptions, plan_schedule
from tests.lockstep.pipeline.grids import EXAMPLE, ONE_GONE, SLOTS

SVG = "{http://www.w3.org/2000/svg}"
MADE = plan_schedule(EXAMPLE, SLOTS, ONE_GONE)


def test_every_piece_of_work_has_a_box_that_says_what_it_is_and_the_picture_is_described_in_words() -> None:
    root = ElementTree.fromstring(draw_schedule(MADE, "Ours & theirs <1>"))
    boxes = [rect for rect in root.iter(f"{SVG}rect") if len(rect)]
    titles = [str(rect.findtext(f"{SVG}title")) for rect in boxes]
    assert len([title for title in titles if "of micro-batch" in title]) == 3 * 4 * 3 * 6
    assert "forward of micro-batch 0 of pipeline 0, 0 to 1" in titles
    assert titles.count("failed") == 1
    assert len([rect for rect in boxes if rect.get("stroke")]) == 6 * 3, "guests are marked"
    assert (root.get("role"), root.findtext(f"{SVG}title")) == ("img", "Ours & theirs <1>")
    assert root.findtext(f"{SVG}desc") == describe(MADE)
    assert "failed workers: pipeline 1 stage 2" in describe(MADE)
    assert "the longest stage is at work for 27" in describe(MADE)


def test_the_legend_names_only_what_is_there() -> None:
    whole = plan_schedule(EXAMPLE, SLOTS, (), ScheduleOptions(is_decoupled=False, is_staggered=False))
    message = [text.text for text in ElementTree.fromstring(draw_schedule(whole, "1F1B")).iter(f"{SVG}text")]
    assert "B: backward in one piece" in message
    assert "W: backward for the weights" not in message
    assert "failed workers: none" in describe(whole)
