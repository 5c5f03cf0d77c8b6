#!/usr/bin/env python3
"""Writes dashboards/*.json from boards/*.toml: SQL stays readable there, and Grafana gets the JSON it wants.

    deploy/grafana/make_dashboards.py [DIRECTORY]

In a board's SQL, @bucket(column) is the point of the picture that a time in nanoseconds falls into, @within(column)
the time range, @minutes the same for roll-ups by minute, @job and @host what was chosen at the top of the page.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any

Json = dict[str, Any]  # Any: Grafana's documents, and tables of TOML

HERE = Path(__file__).resolve().parent
WIDTH = 24  # columns of Grafana's grid
HEIGHTS = {"timeseries": 8, "table": 9, "heatmap": 12, "text": 3}
CLICKHOUSE = {"type": "grafana-clickhouse-datasource", "uid": "${datasource}"}
PROMETHEUS = {"type": "prometheus", "uid": "${prometheus}"}

OTHER_BOARDS = {
    "type": "dashboards",
    "tags": ["lockstep"],
    "title": "",
    "tooltip": "",
    "icon": "",
    "asDropdown": False,
    "keepTime": True,
    "includeVars": False,
    "targetBlank": False,
}

SHORTHANDS = (
    (r"@bucket\((\w+)\)", r"toDateTime(intDiv(\1, 1000000000 * $__interval_s) * $__interval_s)"),
    (
        r"@within\((\w+)\)",
        r"\1 >= toUnixTimestamp($__fromTime) * 1000000000 AND \1 < toUnixTimestamp($__toTime) * 1000000000",
    ),
    (
        r"@minutes",
        "minute BETWEEN intDiv(toUnixTimestamp($__fromTime), 60) AND intDiv(toUnixTimestamp($__toTime), 60)",
    ),
    (r"@(job|host)\b", r"${\1:singlequote}"),
)

CHOICES = {
    "job": "SELECT job FROM attempts GROUP BY job ORDER BY max(last_ns) DESC LIMIT 100",
    "host": "SELECT host FROM agents WHERE ts_ns >= ${__from} * 1000000 AND ts_ns < ${__to} * 1000000 "
    "GROUP BY host ORDER BY host LIMIT 2000",
}


def main() -> None:
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else HERE / "dashboards"
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted((HERE / "boards").glob("*.toml")):
        board = make_board(tomllib.loads(file.read_text(encoding="utf-8")))
        (target / f"{file.stem}.json").write_text(
            json.dumps(board, indent=1, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def make_board(document: Json) -> Json:
    """Return Grafana's document of one board."""
    shown = [{"kind": "text", "title": "", "text": document["text"]}] if "text" in document else []
    return {
        "uid": document["uid"],
        "title": document["title"],
        "tags": ["lockstep"],
        "schemaVersion": 41,
        "version": 1,
        "editable": False,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "utc",
        "links": [OTHER_BOARDS],
        "templating": {"list": [make_source("datasource"), *map(make_variable, document["variables"])]},
        "panels": make_panels(shown + document["panel"]),
    }


def make_variable(name: str) -> Json:
    """Return what can be chosen at the top of the page."""
    if name == "prometheus":
        return make_source(name)
    several = {"multi": True, "includeAll": True} if name == "host" else {}
    return {
        "name": name,
        "label": name.capitalize(),
        "type": "query",
        "datasource": CLICKHOUSE,
        "query": CHOICES[name],
        "definition": CHOICES[name],
        "refresh": 2,
        "sort": 0,
        **several,
    }


def make_source(name: str) -> Json:
    label, kind = ("Store", CLICKHOUSE["type"]) if name == "datasource" else ("Prometheus", "prometheus")
    return {"name": name, "label": label, "type": "datasource", "query": kind, "refresh": 1}


def make_panels(described: list[Json]) -> list[Json]:
    """Return the panels, left to right and line by line."""
    panels, x, y, height = [], 0, 0, 0
    for number, panel in enumerate(described, 1):
        width = panel.get("width", WIDTH)
        if x + width > WIDTH:
            x, y, height = 0, y + height, 0
        height = max(height, HEIGHTS[panel["kind"]])
        position = {"x": x, "y": y, "w": width, "h": HEIGHTS[panel["kind"]]}
        panels.append(
            {"id": number, "type": panel["kind"], "title": panel["title"], "gridPos": position} | make_body(panel)
        )
        x += width
    return panels


def make_body(panel: Json) -> Json:
    if panel["kind"] == "text":
        return {"options": {"mode": "markdown", "content": panel["text"]}}
    body = {
        "description": panel.get("meaning", ""),
        "datasource": PROMETHEUS if "promql" in panel else CLICKHOUSE,
        "fieldConfig": {
            "defaults": {"unit": panel["unit"]} if "unit" in panel else {},
            "overrides": [
                {"matcher": {"id": "byName", "options": column}, "properties": [{"id": "unit", "value": unit}]}
                for column, unit in panel.get("units", {}).items()
            ],
        },
        "targets": [make_target(panel)],
    }
    if panel["kind"] == "heatmap":
        body["options"] = {
            "calculate": False,
            "color": {"mode": "scheme", "scheme": "Oranges"},
            "tooltip": {"mode": "single"},
        }
    return body


def make_target(panel: Json) -> Json:
    if "promql" in panel:
        return {"refId": "A", "datasource": PROMETHEUS, "expr": panel["promql"], "legendFormat": "__auto"}
    is_table = panel["kind"] == "table"
    return {
        "refId": "A",
        "datasource": CLICKHOUSE,
        "editorType": "sql",
        "queryType": "table" if is_table else "timeseries",
        "format": int(is_table),
        "rawSql": expand(panel["sql"]),
    }


def expand(sql: str) -> str:
    """Return SQL with the plugin's macros in place of our shorthands."""
    for shorthand, text in SHORTHANDS:
        sql = re.sub(shorthand, text, sql)
    return sql.strip()


if __name__ == "__main__":
    main()
