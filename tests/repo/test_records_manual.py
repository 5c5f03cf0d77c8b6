"""docs/records.md says what the records say, and explains every word of ours once."""

import re

from lockstep.tables import TABLES, WORDS, columns_of, render_dictionary
from tests.conftest import REPO

MANUAL = REPO / "docs" / "records.md"
SECTIONS = dict(re.findall(r"^### (\w+)\n(.*?)(?=^### |\Z)", render_dictionary(), re.MULTILINE | re.DOTALL))


def cells_of(table: str) -> list[list[str]]:
    rows = [line for line in SECTIONS[table].splitlines() if line.startswith("| `")]
    return [row.strip("|").split(" | ") for row in rows]


def test_records_manual_is_up_to_date(update_golden: bool) -> None:
    if update_golden:
        MANUAL.write_text(render_dictionary(), encoding="utf-8")
    assert MANUAL.read_text(encoding="utf-8") == render_dictionary(), "run this test with --update-golden"


def test_every_column_has_one_row_of_six_whole_cells() -> None:
    for table in TABLES:
        rows = cells_of(table.name)
        assert [row[0].strip(" `") for row in rows] == list(columns_of(table))
        assert {len(row) for row in rows} == {6}
        assert not [cell for row in rows for cell in row if "|" in cell]


def test_every_word_is_explained_in_one_sentence() -> None:
    assert {"rank", "rail", "window", "verdict", "watermark", "segment", "detail request"} <= WORDS.keys()
    odd = [word for word, meaning in WORDS.items() if not re.fullmatch(r"[A-Z][^.]*\.", meaning)]
    assert odd == []
    assert all(f"- **{word}**: {meaning}\n" in render_dictionary() for word, meaning in WORDS.items())
