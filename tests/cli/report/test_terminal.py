"""A report in the terminal is a table, a sentence per verdict, and a small picture of what stands out."""

import io

from rich.console import Console

from cli.report import Described, print_report
from lockstep.verdict import RuledOut
from tests.cli.report.build import cost, described, found, matrix, steps


def printed(diagnosis: Described, width: int = 160) -> list[str]:
    console = Console(file=io.StringIO(), width=width, soft_wrap=True, markup=False, emoji=False)
    print_report(console, diagnosis)
    assert isinstance(console.file, io.StringIO)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]


def test_every_verdict_is_a_row_and_a_sentence() -> None:
    gpu = found(component="gpu:h5/2", side=None, fault_class="noncomm_slow", grade="alert", reason="its clock is low")
    lines = printed(described(found(impact=cost(1.5, 63)), gpu))
    assert lines[0].split() == ["part", "fault", "sure", "grade", "since", "lasted", "cost"]
    assert lines[1].split()[:6] == ["1", "nic:h3/eth1", "tx", "comm_slow", "97", "%"]
    assert "45 s" in lines[1]
    assert "steps take 1.50 times as long, 63 ranks wait, 0.26 GPU-hours lost" in lines[1]
    first = next(number for number, line in enumerate(lines) if line.startswith("1 nic:h3/eth1 slows what it sends"))
    assert lines[first].endswith(" UTC: steps take 1.50 times as long, 63 ranks wait")
    assert lines[first + 1] == "  h3's eth1 sends at a tenth of its rate, says Zoë"
    assert "  its clock is low" in lines


def test_doubts_are_told_below_the_sentence() -> None:
    lines = printed(described(found(coverage=0.5)))
    place = lines.index("  h3's eth1 sends at a tenth of its rate, says Zoë")
    assert lines[place + 1 :] == [
        "  might as well be link:h3/eth1--leaf1",
        "  not link:leaf1--spine2: others cross it at full rate",
        "  50 % of the job's hosts told nothing",
    ]


def test_long_list_of_what_was_ruled_out_is_cut_short() -> None:
    cleared = tuple(RuledOut(component=f"nic:h{number}/eth0", because="fast") for number in range(9))
    lines = printed(described(found(ruled_out=cleared, coverage=1.0)))
    assert lines[-2:] == ["  not nic:h2/eth0: fast", "  and 6 others ruled out"]


def test_nothing_found_is_silence_and_not_health() -> None:
    assert printed(described()) == [
        "no verdict: nothing stands out in what was recorded, which is silence, not proof of health"
    ]


def test_matrix_has_the_slow_sender_and_receiver_beside_the_dark_cell() -> None:
    lines = printed(described(found(), of=matrix(hosts=6, nics=1, slow=(3, 0))))
    begin = lines.index("delay by sender (down) and receiver (across)")
    assert lines[begin + 1].split() == ["▼", "h4/eth0"]
    assert lines[begin + 5] == "h3/eth0 ········██·· ◀ h3/eth0: 4.0 times the normal delay"
    assert lines[begin + 2] == "h0/eth0 ··░░········"
    assert lines[begin + 1].index("▼") == lines[begin + 5].index("█")


def test_large_matrix_still_fits_onto_a_screen() -> None:
    lines = printed(described(found(), of=matrix(hosts=512, nics=8, slow=(300, 5))), width=80)
    begin = next(number for number, line in enumerate(lines) if line.startswith("delay by sender"))
    assert lines[begin].endswith("171 NICs a cell")
    assert len(lines) - begin < 30
    assert sum("h300/eth5: 4.0 times the normal delay" in line for line in lines) == 1


def test_matrix_in_which_nothing_stands_out_is_one_line() -> None:
    lines = printed(described(of=matrix(slow=None)))
    assert lines[-1] == "no wire stands out among 32 that were compared"


def test_step_times_are_a_row_of_bars() -> None:
    line = printed(described(step_times=steps(1, 1, 1, 2, 2, 1)))[-1]
    assert line == "step time ▅▅▅██▅ 1 to 2 s"


def test_many_steps_share_bars_and_the_longest_shows() -> None:
    line = printed(described(step_times=steps(*[1.0] * 999, 4.0)))[-1]
    assert line.startswith("step time ▃")
    assert line.endswith("█ 1 to 4 s")
    assert len(line) < 80


def test_steps_of_no_length_are_drawn_all_the_same() -> None:
    assert printed(described(step_times=steps(0.0, 0.0)))[-1] == "step time ▁▁ 0 to 0 s"


def test_names_are_printed_as_they_are() -> None:
    lines = printed(described(found(component="nic:[/a]/eth1", reason="[/x] [red]:smile:")))
    assert any(line.startswith("1 nic:[/a]/eth1 slows what it sends since ") for line in lines)
    assert "  [/x] [red]:smile:" in lines
