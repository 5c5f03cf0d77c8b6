"""In CI a skipped test is a failure, but for data that is not ours to bring along."""

from tests.conftest import is_excused

ABOUT_DATA = "needs LOCKSTEP_PUBLIC_DATA, the folder of third-party data"


def test_only_missing_third_party_data_is_an_excuse() -> None:
    assert is_excused(ABOUT_DATA, has_public_data=False)
    assert not is_excused(ABOUT_DATA, has_public_data=True)
    assert not is_excused("needs clang", has_public_data=False)
