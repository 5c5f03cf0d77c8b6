"""An app on a real socket for the length of a block."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn
from fastapi import FastAPI

from tests.waiting import eventually

_KEPT_S = 3600  # connections: given up after uvicorn's 5 s, one is reset under whoever sends at that very moment


@contextmanager
def served(app: FastAPI) -> Iterator[str]:
    """Give the address of the app, which runs in a thread; at the end it is shut down as a process would be."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="on", ws="none", timeout_keep_alive=_KEPT_S)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="served-app")
    thread.start()
    try:
        eventually(lambda: server.started or not thread.is_alive())
        assert server.started, "the app did not start"
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listener.close()
