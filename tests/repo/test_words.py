"""Words that the field does not use stay gone: no name in the code has one as a part."""

import re

from lockstep.tables import REPLACED
from tests.conftest import REPO
from tests.repo.files import PACKAGES

# Strings and comments; what braces in an f-string hold is not looked at.
PROSE = re.compile(r"""\"\"\"[\s\S]*?\"\"\"|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|#[^\n]*""")
PLURALS = {plural for word in REPLACED for plural in (f"{word}s", f"{word}es", f"{word[:-1]}ies")}


def parts_of(source: str) -> set[str]:
    """Return the lower-case words that the names of a module are made of."""
    return {part.lower() for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", PROSE.sub(" ", source))}


def test_no_name_is_made_of_a_word_that_was_replaced() -> None:
    refused = REPLACED.keys() | PLURALS
    sources = {
        file: file.read_text("utf-8")
        for package in (*PACKAGES, "benchmarks")
        for file in (REPO / package).rglob("*.py")
    }
    assert len(sources) > len(PACKAGES)
    assert {str(file): words for file, source in sources.items() if (words := refused & parts_of(source))} == {}


def test_a_name_that_has_one_is_seen() -> None:
    assert parts_of("class FabricRoad: find_story = 1") == {"class", "fabric", "road", "find", "story"}
