"""Clients of the API's benchmark: each asks, waits for the answer, and asks again, over one connection of its own.

They speak HTTP by hand: a library for it would take more time than the server.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass
class Answers:
    """How long answers took, and how many were not what was asked for."""

    seconds: list[float] = field(default_factory=list)
    refused: int = 0
    elapsed_s: float = 0.0

    def percentile_ms(self, share: float) -> float:
        return float(np.percentile(self.seconds, share)) * 1e3 if self.seconds else float("inf")

    @property
    def per_s(self) -> float:
        return len(self.seconds) / self.elapsed_s if self.elapsed_s else 0.0


def ask(port: int, tokens: Sequence[str], paths: Sequence[str], seconds: float, pause_s: float = 0.0) -> Answers:
    """Return what as many clients as there are tokens saw, each asking for the paths in turn."""
    return asyncio.run(_ask(port, tokens, paths, seconds, pause_s))


async def _ask(port: int, tokens: Sequence[str], paths: Sequence[str], seconds: float, pause_s: float) -> Answers:
    answers, begin = Answers(), time.perf_counter()
    clients = (
        _client(
            port,
            token,
            [*paths[number % len(paths) :], *paths[: number % len(paths)]],
            begin + seconds,
            pause_s,
            answers,
        )
        for number, token in enumerate(tokens)
    )
    await asyncio.gather(*clients)
    answers.elapsed_s = time.perf_counter() - begin
    return answers


async def _client(
    port: int, token: str, paths: Sequence[str], until: float, pause_s: float, answers: Answers
) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
    head = f"HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {token}\r\n\r\n"
    number = 0
    try:
        while not number or time.perf_counter() < until:
            begin = time.perf_counter()
            writer.write(f"GET {paths[number % len(paths)]} {head}".encode())
            status = await read_answer(reader)
            answers.seconds.append(time.perf_counter() - begin)
            answers.refused += status != 200
            number += 1
            if pause_s:
                await asyncio.sleep(max(begin + pause_s - time.perf_counter(), 0.0))
    finally:
        writer.close()


async def read_answer(reader: asyncio.StreamReader) -> int:
    """Return the status of an answer after all of it has come."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    fields = dict(line.lower().split(": ", 1) for line in head[1:] if ": " in line)
    await reader.readexactly(int(fields.get("content-length", "0")))
    return int(head[0].split(" ", 2)[1])
