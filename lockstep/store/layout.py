"""How one set of SQL files becomes plain tables, or replicated and distributed ones.

On a single server the tables live in one database. On a cluster each node keeps its share in `<database>_local`,
and `<database>` holds Distributed tables of the same names over all shards, so that readers and writers see no
difference. Rows of one job live on one shard (host tables: of one host), so joins never cross shards.
"""

import re
from dataclasses import dataclass

# Blocks remembered per table: an hour of a writer that sends one a second; those that retry in order need the last
# few. A block takes 210 bytes of memory, which is 17 MB for twenty tables; with 10,000 a head node grew for three
# hours. Replicated tables also forget by age, which a retry must not depend on.
DEDUPLICATION_BLOCKS = 4_000
_TEN_YEARS_S = 315_360_000

_PLACEHOLDER = re.compile(r"\$\{(\w+)(?: ([^}]*))?\}")
_COMMENT = re.compile(r"^\s*--.*$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where tables go and which engines they get."""

    database: str
    cluster: str | None = None
    replicated: bool = False

    @property
    def local(self) -> str:
        """Name of the database that holds this node's own rows."""
        return f"{self.database}_local" if self.cluster else self.database


def render(sql: str, layout: Layout) -> list[str]:
    """Return the statements of a migration for this layout, placeholders filled in and comments taken out."""
    text = _PLACEHOLDER.sub(lambda match: _fill(match[1], match[2] or "", layout), _COMMENT.sub("", sql))
    return [statement.strip() for statement in text.split(";") if statement.strip()]


def distributed_table(table: str, sharding_column: str, layout: Layout) -> str:
    """Return the statement that lays a table over all shards; it holds no rows, so it is simply replaced."""
    return (
        f"CREATE OR REPLACE TABLE {layout.database}.{table} AS {layout.local}.{table} "
        f"ENGINE = Distributed('{layout.cluster}', '{layout.local}', '{table}', cityHash64({sharding_column}))"
    )


def _fill(name: str, argument: str, layout: Layout) -> str:
    if name == "local":
        return layout.local
    if name == "engine":
        return _engine(argument.split(), layout.replicated)
    if name == "settings":
        return _settings(layout.replicated)
    raise ValueError(f"a migration uses the unknown placeholder {name!r}")


def _engine(words: list[str], replicated: bool) -> str:
    family, *arguments = words
    if replicated:
        path = "/clickhouse/tables/{shard}/{database}/{table}"
        return f"Replicated{family}({', '.join([repr(path), repr('{replica}'), *arguments])})"
    return f"{family}({', '.join(arguments)})" if arguments else family


def _settings(replicated: bool) -> str:
    """Return what exactly-once needs: a window of tokens, and parts that survive a power cut once acknowledged."""
    window = (
        f"replicated_deduplication_window = {DEDUPLICATION_BLOCKS}, "
        f"replicated_deduplication_window_seconds = {_TEN_YEARS_S}"
        if replicated
        else f"non_replicated_deduplication_window = {DEDUPLICATION_BLOCKS}"
    )
    return f"SETTINGS {window}, ttl_only_drop_parts = 1, fsync_after_insert = 1, fsync_part_directory = 1"
