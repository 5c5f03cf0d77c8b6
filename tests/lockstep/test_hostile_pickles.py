"""Pickles give plain data or one sentence; they neither run code nor take more memory and work than their size."""

import pickle
import random

import pytest

from lockstep.errors import BadInput
from lockstep.hostile_files import load_plain
from tests.lockstep.memory import taking_less_than

pytestmark = pytest.mark.usefixtures("tried_here")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)
FAR = b"Nr\xff\xff\xff\xff"  # None, put to the highest place there is: 64 GiB would be reserved
LOOKS_FAR = "Nr\xff\xff\xff\xff."

# One of each kind and length that the check steps over in its own way.
VALUES = [
    *[None, True, False, 0, 255, 256, 65_535, 65_536, -1, 1 << 31, 1 << 62, -(1 << 62), 1 << 70, 1 << 3000, 2.5],
    *["", "r", "x" * 47, "x" * 48, "x" * 255, "x" * 256, "x" * 70_000, "é" * 30, LOOKS_FAR],
    *[[], [1], [1, 2], (), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), {}, {"a": 1}, {"a": 1, "b": 2}, {1: {(2, 3): 4}}],
    *[list(range(300)), [str(number) for number in range(300)], [["shared"] * 2] * 2],
    {LOOKS_FAR: [LOOKS_FAR * 20, ("p999999999999\n", "é" + LOOKS_FAR)]},
]
BYTES = [b"", b"r", b"x" * 255, b"x" * 256, FAR]  # as they are from protocol 3 on; before, they ask for a function


def refusal(data: bytes) -> str:
    with pytest.raises(BadInput) as refused:
        load_plain("f", data)
    said = str(refused.value)
    assert said.startswith("f: cannot be read as a pickle: ")
    assert "\n" not in said
    return said


def check_place(value: object, protocol: int) -> None:
    """See that a value is read, and that it hides no place that reserves memory without end."""
    data = pickle.dumps(value, protocol=protocol)
    assert load_plain("f", data) == value
    assert "names place 4294967295 in a memo" in refusal(data.removesuffix(b".") + FAR + b".")


def random_value(choose: random.Random, depth: int = 0) -> object:
    kind = choose.randrange(6)
    if kind > 2 or depth > 4:
        return choose.choice(VALUES)
    parts = [random_value(choose, depth + 1) for _ in range(choose.randrange(5))]
    return {str(place): part for place, part in enumerate(parts)} if kind else tuple(parts)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_plain_data_is_read_and_a_far_place_refused_behind_every_kind_of_value(protocol: int) -> None:
    for value in VALUES + BYTES + [set("abc"), frozenset("abc")] if protocol > 3 else VALUES:
        check_place(value, protocol)


def test_so_it_is_behind_any_nesting_of_values() -> None:
    seed = 20261115
    print("seed", seed)
    choose = random.Random(seed)
    for _ in range(100):
        check_place(random_value(choose), choose.choice(PROTOCOLS))


def test_place_in_the_memo_is_harmless_in_a_file_of_its_length_and_takes_little_memory() -> None:
    assert "byte 1 names place 999999999999 in a memo" in refusal(b"Np999999999999\n.")
    assert "byte 1 names place 65536 in a memo of 7 bytes" in refusal(b"Nr\x00\x00\x01\x00.")
    long_enough = b"B" + (65_536).to_bytes(4, "little") + bytes(65_536)
    assert load_plain("f", b"\x80\x03" + long_enough + b"r\x00\x00\x01\x00.") == bytes(65_536)
    data = b"\x80\x02Nr\xff\xff\x00\x00."  # the highest place that no file is asked about
    with taking_less_than(3 << 20):
        assert load_plain("f", data) is None


@pytest.mark.parametrize("padding", [0, 200_000])  # the unpickler reads ahead up to 128 KiB by itself
def test_frame_that_ends_inside_of_an_argument_hides_nothing(padding: int) -> None:
    """An unpickler that is fed frame by frame forgets half of the argument and reads all that follows shifted."""
    inside = b"]X" + padding.to_bytes(4, "little") + b"x" * padding + b"0" + b"(M\x01"
    data = b"\x80\x04\x95" + len(inside).to_bytes(8, "little") + inside + b"\x02e."
    assert load_plain("f", data) == [0x201]


def test_length_beyond_the_end_is_refused() -> None:
    for opcode in (b"X\xff\xff\xff\xff", b"B\xff\xff\xff\x7f", b"\x8c\xff", b"C\xff"):
        assert "but only 2 remain" in refusal(b"\x80\x04" + opcode + b"x.")
    for opcode in (b"\x8d", b"\x8e", b"\x95", b"\x96"):
        refusal(b"\x80\x05" + opcode + (1 << 40).to_bytes(8, "little") + b"x.")
        refusal(b"\x80\x05" + opcode + b"\xff" * 8 + b"x.")


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_class_and_function_is_refused(protocol: int) -> None:
    for thing in (print, random.Random, 3j, range(3)):
        assert "and only plain data is read" in refusal(pickle.dumps([thing], protocol=protocol))
    assert "kept elsewhere" in refusal(b"\x80\x02X\x01\x00\x00\x00aQ.")


def test_list_that_holds_itself_or_a_wide_one_often_is_refused_before_it_is_unfolded() -> None:
    endless: list[object] = []
    endless.extend([endless, endless])
    assert "unfolds to more than" in refusal(pickle.dumps(endless))
    data = pickle.dumps([["x"] * 3_000] * 3_000, protocol=2)
    with taking_less_than(8 << 20):  # unfolded, it takes 72 MB
        assert "unfolds to more than" in refusal(data)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_small_file_that_unfolds_without_end_is_refused(protocol: int) -> None:
    lists: object = ["x"]
    tuples, dicts = lists, lists
    for _ in range(40):
        lists, tuples, dicts = [lists, lists], (tuples, tuples), {1: dicts, 2: dicts}
    for folded in (lists, tuples, dicts):
        assert "unfolds to more than" in refusal(pickle.dumps(folded, protocol=protocol))


def test_deep_nesting_is_read() -> None:
    data = b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b"."
    value = load_plain("f", data)
    for _ in range(49_999):
        assert isinstance(value, list)
        (value,) = value
    assert value == []
