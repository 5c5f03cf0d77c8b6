"""The dashboards as these tests see them, and what Grafana's ClickHouse plugin makes of a query."""

import json
from dataclasses import dataclass
from typing import Any

from tests.builders import SECOND, T0
from tests.conftest import REPO

GRAFANA = REPO / "deploy/grafana"
DASHBOARDS = GRAFANA / "dashboards"

Document = dict[str, Any]  # Any: JSON of another program, taken apart here

# What the plugin puts in place of its macros, for a time range of ten minutes around T0 and points a minute apart.
TO_S = T0 // SECOND + 300
_RANGE_S = 600
_MACROS = {"$__interval_s": "60", "${job:singlequote}": "'j1'", "${host:singlequote}": "'h0','h1'"}


@dataclass(frozen=True)
class Panel:
    board: str
    title: str
    document: Document

    @property
    def target(self) -> Document:
        (target,) = self.document["targets"]
        return dict(target)

    @property
    def sql(self) -> str | None:
        return self.target.get("rawSql")


def boards() -> dict[str, Document]:
    return {file.stem: json.loads(file.read_text()) for file in sorted(DASHBOARDS.glob("*.json"))}


def panels() -> list[Panel]:
    return [
        Panel(name, panel["title"], panel)
        for name, board in boards().items()
        for panel in board["panels"]
        if "targets" in panel
    ]


def sql_of(title: str) -> str:
    (found,) = [panel.sql for panel in panels() if panel.title == title]
    return literal(str(found))


def literal(sql: str, later_s: int = 0) -> str:
    """Return a query as ClickHouse gets it, with the time range so much later."""
    end_s = TO_S + later_s
    times = {"$__fromTime": f"toDateTime({end_s - _RANGE_S})", "$__toTime": f"toDateTime({end_s})"}
    times |= {"${__from}": f"{end_s - _RANGE_S}000", "${__to}": f"{end_s}000"}
    for macro, value in (times | _MACROS).items():
        sql = sql.replace(macro, value)
    assert "$" not in sql, f"a macro or variable that this test does not know: {sql}"
    assert "@" not in sql, f"a shorthand that make_dashboards.py does not know: {sql}"
    return sql
