"""The hosts of the API's benchmark: every second each sends a batch of the job to the gateway, until it is ended.

`python -m benchmarks.api_sender PORT FILE`, where the file has a token a line, in the order of hosts.
"""

import asyncio
import sys
import time
from pathlib import Path

from benchmarks.api_load import read_answer
from benchmarks.api_rows import host_name, host_second
from lockstep.batches import (
    AGENT_HEADER,
    BOOT_HEADER,
    CONTENT_TYPE,
    ENCODING,
    NUMBER_HEADER,
    VERSION_HEADER,
    encode_batch,
)
from lockstep.clock import NS_PER_S
from lockstep.records import RECORDS_VERSION


async def send(port: int, tokens: list[str]) -> None:
    """Send until the process is ended, each host at its own moment of the second."""
    await asyncio.gather(*(_host(port, number, token, len(tokens)) for number, token in enumerate(tokens)))


async def _host(port: int, number: int, token: str, hosts: int) -> None:
    sent = 0
    while True:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            while True:
                await asyncio.sleep(1.0 + number / hosts - time.time() % 1.0)
                sent += 1
                second_ns = (time.time_ns() // NS_PER_S - 1) * NS_PER_S
                body = encode_batch(host_second(number, second_ns))
                writer.write(_head(port, number, token, sent, len(body)) + body)
                if await read_answer(reader) != 200:
                    sys.stderr.write(f"the batch of {host_name(number)} was refused\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()  # the server ends connections that are idle for long; the next batch opens another


def _head(port: int, host: int, token: str, number: int, length: int) -> bytes:
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Authorization": f"Bearer {token}",
        "Content-Type": CONTENT_TYPE,
        "Content-Encoding": ENCODING,
        AGENT_HEADER: host_name(host),
        BOOT_HEADER: "bench",
        NUMBER_HEADER: str(number),
        VERSION_HEADER: str(RECORDS_VERSION),
        "Content-Length": str(length),
    }
    return "".join(
        ["POST /api/v1/ingest HTTP/1.1\r\n", *(f"{k}: {v}\r\n" for k, v in fields.items()), "\r\n"]
    ).encode()


if __name__ == "__main__":
    asyncio.run(send(int(sys.argv[1]), Path(sys.argv[2]).read_text(encoding="ascii").split()))
