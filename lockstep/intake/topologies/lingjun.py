"""The topology of Alibaba's Lingjun data set of 2023: a CSV with a host per line and the switches above it.

The columns are ip (a digest of it), DSW, PSW and ASW, from the core down. An ASW is numbered within its PSW: the data
set has S6 below three of them, with at most eight hosts each time.
"""

import csv
import io
from collections import defaultdict

from lockstep.errors import BadInput
from lockstep.intake.topologies.survey import Source, Survey, in_words
from lockstep.intake.topologies.trees import Tree, survey_tree

_COLUMNS = ("ip", "DSW", "PSW", "ASW")
_Row = dict[str, str]


def parse_lingjun(source: Source) -> Survey:
    """Return what the file tells, each ASW under the name of its PSW where several have that number."""
    survey = Survey(source.name)
    rows = _read(source, survey)
    parents: dict[str, set[str]] = defaultdict(set)
    for row in rows:
        parents[row["ASW"]].add(row["PSW"])
    shared = [name for name, above in parents.items() if len(above) > 1]
    if shared:
        survey.assumed.append(
            f"{source.name}: {in_words(shared)} stand below several PSWs: taken for another leaf below each"
        )
    tree = Tree()
    for row in rows:
        leaf = f"{row['PSW']}-{row['ASW']}" if len(parents[row["ASW"]]) > 1 else row["ASW"]
        tree.put_switches(row["DSW"], [row["PSW"]])
        tree.put_switches(row["PSW"], [leaf])
        tree.put_hosts(leaf, [row["ip"]])
    return survey_tree(tree, survey)


def _read(source: Source, survey: Survey) -> list[_Row]:
    lines = csv.reader(io.StringIO(source.text(), newline=""))
    try:
        header = next(lines, [])
        if missing := [name for name in _COLUMNS if name not in header]:
            raise BadInput(f"{source.name}: has no column {', '.join(missing)}")
        rows = [(lines.line_num, dict(zip(header, line, strict=False))) for line in lines if line]
    except csv.Error as error:
        raise BadInput(f"{source.name}: is no CSV: {error}") from None
    for number, row in rows:
        if not all(row.get(name) for name in _COLUMNS):
            survey.complain(f"line {number}: has an empty column or too few")
    return [row for _, row in rows if all(row.get(name) for name in _COLUMNS)]
