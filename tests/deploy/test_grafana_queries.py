"""Every query of every dashboard runs on a real store and finds what is there: a column that is gone fails here."""

from collections.abc import Iterator

import pytest

from lockstep.records import (
    Agent,
    Collective,
    Comm,
    Event,
    HostRecord,
    NicCounter,
    OpStat,
    Transfer,
    TransferStat,
)
from lockstep.store.migrations import Layout, migrate
from lockstep.store.store import Store, open_store
from lockstep.tables import TABLES
from tests.api.views.build import step
from tests.builders import SECOND, T0, make, rows
from tests.deploy.grafana_boards import Panel, boards, literal, panels
from tests.deploy.telemetry_rows import clock, gpu, port, probe, progress

ASKING = [pytest.param(panel, id=f"{panel.board}: {panel.title}") for panel in panels() if panel.sql]

RECORDS: tuple[tuple[HostRecord, ...], ...] = (
    (make(Comm, rank=0), make(Comm, rank=1, host="h1")),
    (make(Collective),),
    (make(OpStat), make(OpStat, rank=1, gap_sum_ns=SECOND)),
    (make(Transfer),),
    (make(TransferStat, peer_wait_ns=SECOND), make(TransferStat, rank=1, peer=0, host="h1")),
    (progress(0, enqueued=5, done=4, open_s=60), progress(1, enqueued=4, done=4, open_s=None)),
    (step("j1", 1, 0, T0, 1.0), step("j1", 2, 0, T0 + 280 * SECOND, 2.0)),
    (make(Agent, plugin_cost_ns=5), make(Agent, ts_ns=T0 + SECOND, plugin_cost_ns=9, cpu_ns=10**7)),
    (clock(),),
    (make(NicCounter), make(NicCounter, ts_ns=T0 + SECOND, up=False, speed_mbps=None, tx_bytes=7)),
    (port(at_s=0, drops=0), port(at_s=1, drops=12)),
    (gpu(3, at_s=0), gpu(3, at_s=1, throttle="hw_thermal", errors=2)),
    (make(Event, severity="error"), make(Event)),
    (probe(1, rtt_ns=None), probe(3, rtt_ns=9)),
)


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    """A store with some rows in every table that a dashboard reads."""
    with open_store(f"chdb://{tmp_path_factory.mktemp('grafana') / 'store'}") as store:
        migrate(store, Layout(store.database), now_ns=1)
        for records in RECORDS:
            table = next(table for table in TABLES if table.record is type(records[0]))
            store.insert(table, rows(*records), token=f"test/{table.name}")
        yield store


@pytest.mark.parametrize("panel", ASKING)
def test_query_runs_and_finds_what_is_there(filled: Store, panel: Panel) -> None:
    found = filled.query(literal(str(panel.sql)))

    assert found.num_rows > 0
    shown = {override["matcher"]["options"] for override in panel.document["fieldConfig"]["overrides"]}
    assert shown <= set(found.column_names), "a unit for a column that is not there"
    assert ("time" in found.column_names) == (panel.document["type"] != "table")


@pytest.mark.parametrize("panel", ASKING)
def test_query_of_a_silent_hour_is_empty_and_no_error(filled: Store, panel: Panel) -> None:
    hours_later = literal(str(panel.sql), later_s=10_000)
    timeless = {"Communicators", "What the store holds"}

    assert (filled.query(hours_later).num_rows == 0) == (panel.title not in timeless)


def test_what_can_be_chosen_is_what_is_there(filled: Store) -> None:
    choices = {
        one["name"]: one
        for board in boards().values()
        for one in board["templating"]["list"]
        if one["type"] == "query"
    }
    found = {name: filled.query(literal(one["query"]))[name].to_pylist() for name, one in choices.items()}

    assert found == {"job": ["j1"], "host": ["h0"]}
    assert all(one["definition"] == one["query"] for one in choices.values()), (
        "Grafana shows the one and runs the other"
    )
