"""docs/records.md as text: our words, and every table and column with type, unit and meaning, from the records."""

from lockstep.tables import TABLES, Column, Table, columns_of

WORDS: dict[str, str] = {
    "rank": "One process of a job and the GPU it drives, by its number inside a communicator or in the whole job.",
    "host": "A machine with GPUs and NICs; its name is the one that the topology uses.",
    "NIC": "A network port of a host; it takes one cable, and its name means something on its host only.",
    "link": "A cable between two nodes of the topology; direction tx goes from its end a to its end b.",
    "rail": "The NICs of the same position on all hosts, and the leaves that they are cabled to.",
    "collective": "An operation of all ranks of a communicator; Send and Recv, of two, are kept in the same table.",
    "transfer": "What one operation moves on one channel to or from one peer, as one side of it sees it.",
    "step": "A training step of a rank; inside a transfer, a network step is one buffer that goes over the wire.",
    "window": "A stretch of time that is judged as a whole, once all hosts have reported it or were given up.",
    "verdict": "What the analyzer says: one faulty part, how sure it is, why, and why no other part.",
    "incident": "A fault over its lifetime: opened by a verdict, updated while it lasts, closed with a reason.",
    "decision": "What the planner says to an incident: one action, its cost, and the cost of every alternative.",
    "order": "What a person wants to become of a decision: approve, reject or undo; lines are only ever added.",
    "execution": "A decision being carried out: its steps, each written down before it is asked for.",
    "mark": "The id of a decision, left at the job controller, so that an act asked for twice is done once.",
    "plan": "Where traffic or work goes from now on: a path for each flow, or a layout for a job.",
    "capture": "The portable case file: any subset of these tables with a description and, if known, a topology.",
    "story": "A simulated cluster, a job, what breaks in it when, and which verdict is right.",
    "watermark": "A moment or a number up to which nothing is missing any more.",
    "segment": "An immutable piece of the gateway's log that goes into the store whole, and once.",
    "wish": "What the server asks a collector to do, such as more detail on a rank; each wish expires.",
}

_INTRODUCTION = """\
# Words and records

One thing has one word, in the code, in the tables and in what we say. Times are integer nanoseconds since the UNIX
epoch, of the clock of `host`; a `moment` is such a time, a `span` a duration, neither is ever negative. What may be
null is unknown when it is null; unknown is never written as zero. This page is generated: records and columns are
changed in `lockstep/records.py`, words in `lockstep/dictionary.py`.
"""
# By how a column's name ends; the first that fits counts.
_UNITS = {"_ns": "ns", "bytes": "bytes", "_mbps": "Mb/s", "_mhz": "MHz", "temp_c": "°C", "power_w": "W"}


def render_dictionary() -> str:
    """Return the whole page."""
    words = "".join(f"- **{word}**: {meaning}\n" for word, meaning in WORDS.items())
    return "\n".join([_INTRODUCTION, f"## Words\n\n{words}", "## Tables\n", *map(_render_table, TABLES)])


def _render_table(table: Table) -> str:
    key = ", ".join(f"`{column}`" for column in table.key)
    facts = f"Key: {key}." if key else "No key: equal rows may repeat."
    facts += f" Time: `{table.time}`." if table.time else " Rows carry no time."
    rows = "".join(_render_column(column, column.name in table.key) for column in columns_of(table).values())
    head = "| column | type | unit | null | key | meaning |\n|---|---|---|---|---|---|\n"
    return f"### {table.name}\n\n{table.record.__doc__} {facts}\n\n{head}{rows}"


def _render_column(column: Column, is_key: bool) -> str:
    kind = ", ".join(f"`{choice}`" for choice in column.choices) or column.kind
    unit = next((unit for ending, unit in _UNITS.items() if column.name.endswith(ending)), "")
    cells = [
        f"`{column.name}`",
        kind,
        unit,
        "yes" if column.nullable else "",
        "yes" if is_key else "",
        column.meaning,
    ]
    return f"| {' | '.join(cells)} |\n"
