"""What tests of several formats share: rows that fit their tables, and the sentence of a refusal."""

from collections.abc import Callable
from typing import Any

import pytest

from importers.traces.readings import Reading
from lockstep.arrow import conform, find_duplicate
from lockstep.errors import BadInput
from lockstep.tables import TABLE_BY_NAME

Told = dict[str, Any]  # Any: JSON, or a row


def sound(reading: Reading) -> Reading:
    """Return the reading whose rows fit their tables."""
    for name, rows in reading.tables().items():
        conform(TABLE_BY_NAME[name], rows)
        assert find_duplicate(TABLE_BY_NAME[name], rows) is None
    return reading


def events_of(reading: Reading) -> list[Told]:
    """Return the events without what is not known of them."""
    rows = conform(TABLE_BY_NAME["events"], reading.tables()["events"]).to_pylist()
    return [{name: value for name, value in row.items() if value is not None} for row in rows]


def refusal(parse: Callable[[], object]) -> str:
    """Return the one line in which something is refused."""
    with pytest.raises(BadInput) as refused:
        parse()
    assert "\n" not in str(refused.value)
    return str(refused.value)
