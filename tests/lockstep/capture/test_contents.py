"""capture.json says whose telemetry it is, or is refused with what is wrong in it."""

import json
from typing import Any

import pytest

from lockstep.capture.files import CAPTURE_VERSION, CaptureInfo, JobLayout, dump_info, parse_info
from lockstep.errors import BadCapture

SOUND = {"version": 1, "job": "j1", "start_ns": 5, "end_ns": 9}


def refusal(text: str) -> str:
    with pytest.raises(BadCapture) as caught:
        parse_info(text)
    assert caught.value.file == "capture.json"
    return caught.value.problem


def test_description_survives_its_text() -> None:
    info = CaptureInfo(job="j1", start_ns=5, end_ns=9, layout=JobLayout(tp=8, dp=2), hosts=("h0", "h1"))
    assert parse_info(dump_info(info)) == info


def test_unknown_layout_is_left_out_of_the_text() -> None:
    assert "layout" not in json.loads(dump_info(CaptureInfo(job="j1", start_ns=5, end_ns=9)))
    assert json.loads(dump_info(CaptureInfo(job="j1", start_ns=5, end_ns=9, layout=JobLayout(pp=4))))["layout"] == {
        "pp": 4
    }


def test_job_and_times_are_enough() -> None:
    assert parse_info('{"job": "j1", "start_ns": 5, "end_ns": 9}') == CaptureInfo(job="j1", start_ns=5, end_ns=9)


def test_moment_is_a_capture_too() -> None:
    assert parse_info(json.dumps(SOUND | {"end_ns": 5})).end_ns == 5


@pytest.mark.parametrize("text", ["", "{", "not json", "[" * 100_000, "1" * 5_000, '{"job": "\\ud800"}', "\ufeff{}"])
def test_what_is_not_json_is_refused(text: str) -> None:
    assert refusal(text).startswith("is not JSON: ")


@pytest.mark.parametrize("text", ["[]", "null", "7", '"j1"'])
def test_json_that_is_no_object_is_refused(text: str) -> None:
    assert refusal(text) == "the file: Input should be an object"


def test_newer_version_is_refused_before_anything_else() -> None:
    newer = {"version": CAPTURE_VERSION + 1, "jobs": ["j1", "j2"]}
    assert refusal(json.dumps(newer)) == "is version 2, newer than the 1 this code reads"


def test_end_before_start_is_refused_with_both() -> None:
    assert refusal(json.dumps(SOUND | {"end_ns": 4})) == "ends at 4, before it starts at 5"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "9"),
        ("version", True),
        ("version", 0),
        ("job", 7),
        ("job", None),
        ("start_ns", "5"),
        ("start_ns", 5.0),
        ("start_ns", -1),
        ("end_ns", 2**63),
        ("hosts", "h0"),
        ("layout", [8]),
        ("mood", "fine"),
    ],
)
def test_wrong_value_is_refused_by_the_name_of_its_field(field: str, value: Any) -> None:
    assert refusal(json.dumps(SOUND | {field: value})).startswith(f"{field}: ")


@pytest.mark.parametrize(
    ("place", "field"), [("hosts.1", {"hosts": ["h0", 1]}), ("layout.tp", {"layout": {"tp": 0}})]
)
def test_wrong_value_inside_a_field_is_refused_by_its_place(place: str, field: dict[str, Any]) -> None:
    assert refusal(json.dumps(SOUND | field)).startswith(f"{place}: ")


@pytest.mark.parametrize("field", ["job", "start_ns", "end_ns"])
def test_missing_field_is_refused_by_its_name(field: str) -> None:
    without = {name: value for name, value in SOUND.items() if name != field}
    assert refusal(json.dumps(without)) == f"{field}: Field required"
