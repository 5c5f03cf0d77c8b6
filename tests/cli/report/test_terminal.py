"""A report in the terminal is a table, a sentence per verdict, a small picture, and what it cost in words."""

import io

import pytest

from cli.report import Described, coverage_words, lasting_words, part_words, print_report
from cli.setup import CleanConsole
from lockstep.verdict import FaultClass, Impact, RuledOut
from lockstep.words import impact_words
from tests.cli.report.build import cost, described, found, matrix, steps


def printed(diagnosis: Described, width: int = 160) -> list[str]:
    console = CleanConsole(file=io.StringIO(), width=width)
    print_report(console, diagnosis)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_nothing_that_others_wrote_moves_the_cursor_or_breaks_a_line_of_ours() -> None:
    lines = printed(
        described(found(component="nic:h3/\x1b[2Jeth1", reason="[/red] \x1b]0;gone\x07 \u202eback \x9b1m"))
    )
    assert not [letter for line in lines for letter in line if not letter.isprintable()]
    assert "  [/red] \ufffd]0;gone \ufffdback \ufffd1m" in lines


def test_every_verdict_is_a_row_and_a_sentence_with_doubts_below_and_names_as_they_are() -> None:
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
    lines = printed(described(found(coverage=0.5)))
    place = lines.index("  h3's eth1 sends at a tenth of its rate, says Zoë")
    assert lines[place + 1 :] == [
        "  might as well be link:h3/eth1--leaf1",
        "  not link:leaf1--spine2: others cross it at full rate",
        "  50 % of the job's hosts sent no telemetry",
    ]
    cleared = tuple(RuledOut(component=f"nic:h{number}/eth0", because="fast") for number in range(9))
    lines = printed(described(found(ruled_out=cleared, coverage=1.0)))
    assert lines[-2:] == ["  not nic:h2/eth0: fast", "  and 6 others ruled out"]
    lines = printed(described(found(component="nic:[/a]/eth1", reason="[/x] [red]:smile:")))
    assert any(line.startswith("1 nic:[/a]/eth1 slows what it sends since ") for line in lines)
    assert "  [/x] [red]:smile:" in lines


def test_nothing_found_or_nothing_that_stands_out_is_one_line() -> None:
    assert printed(described()) == [
        "no verdict: nothing stands out in what was recorded, which is silence, not proof of health"
    ]
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


@pytest.mark.parametrize(
    ("lasted_s", "fault_class", "impact", "hours", "words"),
    [
        (
            3_600,
            "comm_slow",
            cost(1.25, 1_000),
            200.0,
            "steps take 1.25 times as long, 1,000 ranks wait, 200 GPU-hours lost",
        ),
        (1_800, "comm_hang", cost(None, 64), 32.0, "the job stands still, 64 ranks wait, 32 GPU-hours lost"),
        (1_800, "noncomm_hang", cost(None, 64), 32.0, "the job stands still, 64 ranks wait, 32 GPU-hours lost"),
        (1_800, "crash", cost(None, 64), 32.0, "the job stands still, 64 ranks wait, 32 GPU-hours lost"),
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
    assert part_words(found().verdict) == "nic:h3/eth1 tx"
    assert part_words(found(side=None).verdict) == "nic:h3/eth1"
    assert lasting_words(found(0, 90)) == "1 min 30 s"
    assert lasting_words(found(0, 90, flaps=3)) == "1 min 30 s, came back 3 times"
    assert coverage_words(found(coverage=1.0).verdict) == ""
    assert coverage_words(found(coverage=0.75).verdict) == "25 % of the job's hosts sent no telemetry"
