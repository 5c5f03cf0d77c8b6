"""The API's benchmark fills a store with what 1,024 ranks send, and its clients count what they are answered."""

import asyncio
import threading
from contextlib import suppress

import pytest

from benchmarks.api import JOB, Answers, _figures, _incident, ask, fill, host_second
from benchmarks.store import GPUS_PER_HOST, HOSTS, host_name
from lockstep.arrow import schema_of
from lockstep.clock import NS_PER_S
from lockstep.tables import TABLE_BY_NAME
from tests.api.fake_store import FakeStore
from tests.waiting import LIMIT_S

NOW = 1_700_000_000 * NS_PER_S


def test_host_sends_statistics_of_its_ranks_and_a_heartbeat() -> None:
    sent = host_second(3, NOW)
    assert {name: rows.num_rows for name, rows in sent.items()} == {"transfer_stats": 32, "op_stats": 8, "agents": 1}
    assert set(sent["op_stats"]["host"].to_pylist()) == {host_name(3)}
    assert sent["op_stats"]["rank"].to_pylist() == list(range(3 * GPUS_PER_HOST, 4 * GPUS_PER_HOST))
    for name, rows in sent.items():
        assert rows.schema.names == schema_of(TABLE_BY_NAME[name]).names


def test_store_is_filled_up_to_now_with_as_many_rows_as_are_wanted() -> None:
    store, told = FakeStore(), list[str]()
    rows = fill(store, 220_000, NOW, told.append)
    assert 150_000 < rows <= 220_000
    assert len(store.column("comms", "rank")) == 4 * HOSTS * GPUS_PER_HOST
    assert store.column("agents", "ts_ns")[-1] == NOW
    assert f"{rows:,} rows" in told[0]


def test_incident_is_as_long_as_a_real_one() -> None:
    made = _incident(7, NOW)
    assert (made.id, made.job, made.state) == ("i7", JOB, "closed")
    assert 1_000 < len(made.model_dump_json()) < 5_000


def answer_twice_then_end(ports: list[int], ready: threading.Event) -> None:
    """Serve one connection: one answer with 200, one with 503, one more, then nothing."""

    async def serve() -> None:
        done = asyncio.Event()

        async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(asyncio.IncompleteReadError):  # on a busy machine it leaves before the third
                for status in ("200 OK", "503 Away", "200 OK"):
                    await reader.readuntil(b"\r\n\r\n")
                    writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 3\r\n\r\nabc".encode())
                await reader.read()
            writer.close()
            done.set()

        server = await asyncio.start_server(talk, "127.0.0.1", 0)
        ports.append(server.sockets[0].getsockname()[1])
        ready.set()
        async with server:
            await done.wait()

    asyncio.run(serve())


def test_client_asks_again_after_each_answer_and_counts_refusals() -> None:
    ports, ready = list[int](), threading.Event()
    server = threading.Thread(target=answer_twice_then_end, args=(ports, ready))
    server.start()
    assert ready.wait(LIMIT_S)
    answers = ask(ports[0], ["t"], ["/a", "/b"], seconds=0.25, pause_s=0.1)
    server.join(LIMIT_S)
    assert 1 <= len(answers.seconds) <= 3
    assert answers.refused == (1 if len(answers.seconds) > 1 else 0)
    assert answers.per_s > 0


def test_figures_have_the_floors_and_goals_of_the_claim() -> None:
    quick, slow = Answers([0.01] * 100, 0, 1.0), Answers([2.0] * 100, 3, 1.0)
    asked = dict.fromkeys(("first", "listed", "mixed", "paced", "jobs"), quick) | {"matrix": slow}
    found = {figure.name: figure for figure in _figures(10, asked, 1.0)}
    listed, matrix = found["incident list, 99th percentile"], found["matrix of 1,024 ranks, 99th percentile"]
    assert (listed.floor, listed.goal, listed.met) == (200, 50, True)
    assert listed.value == pytest.approx(10.0)
    assert (matrix.floor, matrix.goal, matrix.met) == (1_000, 250, False)
    assert found["requests that were refused"].met is False
