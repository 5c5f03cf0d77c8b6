"""A report says how a command ended: the exception as its traceback names it, within the size that a reader takes."""

import pytest

from collector.supervision import (
    REPORT_LIMIT_BYTES,
    Membership,
    RunReport,
    UncaughtException,
    decode_report,
    encode_report,
    find_exception,
    last_lines,
)
from lockstep.errors import BadInput
from tests.builders import T0

FRAME = '  File "train.py", line 7, in step\n    loss = model(batch)\n           ^^^^^^^^^^^^\n'
BEGIN = "Traceback (most recent call last):\n"
RANKED = "".join(f"[rank12]: {line}\n" for line in f"{BEGIN}{FRAME}ValueError: no loss".splitlines())


def report(tail: tuple[str, ...] = ()) -> RunReport:
    error = UncaughtException("ValueError", "no loss")
    return RunReport(42, "python3", Membership(3, "4711"), T0, T0 + 1, 1, None, error, tail)


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (f"{BEGIN}{FRAME}torch.OutOfMemoryError: CUDA.\n", "torch.OutOfMemoryError: CUDA."),
        (f"{BEGIN}{FRAME}KeyboardInterrupt\n", "KeyboardInterrupt"),
        (f"{BEGIN}{FRAME}RuntimeError: one\ntwo\nthree\n", "RuntimeError: one"),
        (f"{BEGIN}{FRAME}KeyError: 1\n\nDuring handling of it:\n\n{BEGIN}{FRAME}OSError: disk\n", "OSError: disk"),
        (f"{BEGIN}{FRAME}ValueError: a\nsomething said at the end\n", "ValueError: a"),
        (f"{BEGIN}{FRAME}test.<locals>.Odd: x\n", "test.<locals>.Odd: x"),
        (RANKED, "ValueError: no loss"),  # the prefix that torch gives each rank's lines is passed over
    ],
)
def test_exception_is_that_of_the_last_traceback(output: str, told: str) -> None:
    assert str(find_exception(output.encode())) == told
    for cut in ("", "ValueError: no loss\n", BEGIN, BEGIN + FRAME, f"{BEGIN}{FRAME}not a class!\n"):
        assert find_exception(cut.encode()) is None


def test_last_lines_are_cut_cleaned_and_twenty_at_most() -> None:
    output = b"first\n" * 30 + b"10%\r20%\r\n\n" + b"\xff\x1b[31m" + b"x" * 600 + b"\n"
    lines = last_lines(output)
    assert lines[-3:-1] == ("10%", "20%")
    assert lines[-1] == ("\ufffd[31m" + "x" * 600)[:500]
    assert len(lines) == 20


def test_report_survives_its_file_without_lines_where_these_are_too_long() -> None:
    for kept in (report(("step 7", "ValueError: no loss")), report(("ü" * 500,) * 20)):
        assert decode_report(encode_report(kept)) == kept
    assert decode_report(encode_report(report(("\U0001f600" * 500,) * 20))) == report()
    with pytest.raises(BadInput, match=f"{REPORT_LIMIT_BYTES} bytes at most, not {REPORT_LIMIT_BYTES + 1}"):
        decode_report(b" " * (REPORT_LIMIT_BYTES + 1))
