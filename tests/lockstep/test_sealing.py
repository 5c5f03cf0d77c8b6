"""What is sealed opens with its key, for its purpose, and in no other way; a missing key is said in a sentence."""

import base64
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lockstep.errors import SealBroken
from lockstep.sealing import KEY_BYTES, Keyring, seal, unseal

KEY, OTHER = b"k" * KEY_BYTES, b"o" * KEY_BYTES


def write_keys(file: Path, *keys: bytes) -> Keyring:
    file.write_text("\n".join(base64.b64encode(key).decode() for key in keys) + "\n")
    return Keyring(file)


@given(st.binary(max_size=200), st.text(max_size=20), st.data())
def test_seal_opens_unchanged_and_nothing_else_does(content: bytes, about: str, data: st.DataObject) -> None:
    sealed = seal(KEY, content, about)
    assert unseal(KEY, sealed, about) == content
    assert seal(KEY, content, about) != sealed, "never alike"
    raw = bytearray(base64.b64decode(sealed))
    raw[data.draw(st.integers(0, len(raw) - 1))] ^= 1
    for key, text, purpose in (
        (OTHER, sealed, about),
        (KEY, sealed, about + "x"),
        (KEY, base64.b64encode(raw).decode(), about),
        (KEY, "no base64!", about),
        (KEY, "", about),
    ):
        with pytest.raises(SealBroken, match="sealed with another key, or changed"):
            unseal(key, text, purpose)


def test_first_key_of_a_file_seals_and_all_open(tmp_path: Path) -> None:
    file = tmp_path / "secrets.key"
    old = write_keys(file, OTHER).seal(b"old", "t")
    keys = write_keys(file, KEY, OTHER)
    new = keys.seal(b"new", "t")
    assert (keys.unseal(old, "t"), keys.unseal(new, "t")) == (b"old", b"new")
    assert (keys.is_newest(old), keys.is_newest(new)) == (False, True)
    with pytest.raises(SealBroken, match=r"key \w{8} is not in .*secrets\.key"):
        write_keys(file, KEY).unseal(old, "t")


def test_key_file_is_made_once_for_us_alone_and_neither_by_reading_nor_where_it_was_named(tmp_path: Path) -> None:
    file = tmp_path / "secrets.key"
    with pytest.raises(SealBroken, match="cannot be read: No such file"):
        Keyring(file, is_made=True).unseal("aaaaaaaa.x", "t")
    with pytest.raises(SealBroken, match="cannot be read: No such file"):
        Keyring(file).seal(b"x", "t")
    assert not file.exists()
    with pytest.raises(SealBroken, match=r"cannot be made: No such file or directory"):
        Keyring(tmp_path / "gone" / "secrets.key", is_made=True).seal(b"x", "t")
    file = tmp_path / "secrets.key"
    keys = Keyring(file, is_made=True)
    with ThreadPoolExecutor(8) as pool:
        sealed = list(pool.map(lambda _: keys.seal(b"x", "t"), range(8)))
    assert {keys.unseal(each, "t") for each in sealed} == {b"x"}, "all with the key that is in the file"
    assert file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["secrets.key"], "no draft is left"
    assert len(file.read_text().split()) == 1


@pytest.mark.parametrize(
    ("held", "sentence"),
    [
        (b"", "there is no key in"),
        (b"c2hvcnQ=\n", "line 1 of .* is no key: a key is base64 of 32 bytes"),
        (base64.b64encode(KEY) + b"\nnot a key", "line 2 of .* is no key"),
        (b"\xff\xfe", "it is not plain text"),
    ],
)
def test_bad_key_file_is_said_without_its_content(tmp_path: Path, held: bytes, sentence: str) -> None:
    file = tmp_path / "secrets.key"
    file.write_bytes(held)
    with pytest.raises(SealBroken, match=sentence) as caught:
        Keyring(file).seal(b"x", "t")
    assert "c2hvcnQ" not in str(caught.value)
