"""Every source is registered under its own name and can be made for any host."""

from collector.registry import SOURCES


def test_sources_have_the_names_they_are_registered_under() -> None:
    names = [name for name, _ in SOURCES]
    assert [make("h0").name for _, make in SOURCES] == names
    assert len(set(names)) == len(names)
    assert "links" in names


def test_sources_say_how_often_to_read_them() -> None:
    assert [name for name, make in SOURCES if make("h0").period_s <= 0] == []
