"""lockstep collect: the agent on a training host."""

import signal
import socket
import threading

import structlog
import typer

from cli.setup import settings_of
from collector.agent import CollectorAgent
from collector.registry import SOURCES
from lockstep.clock import SystemClock
from lockstep.config import read_secret
from lockstep.errors import BadInput

_log = structlog.get_logger("collect")


def command(context: typer.Context) -> None:
    """Read this host and send what is found to the gateway, until stopped."""
    settings = settings_of(context)
    token = read_secret(settings.collector.token_file, "the host's token")
    if not token:
        raise BadInput("the agent needs a token: make one with `lockstep token create` and set collector.token_file")
    host = settings.collector.host or socket.gethostname().split(".", 1)[0]
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    agent = CollectorAgent(
        host=host,
        sources=[make(host) for _, make in SOURCES],
        server=settings.collector.server,
        token=token,
        clock=SystemClock(),
        buffer_bytes=settings.collector.buffer_mb << 20,
    )
    agent.start()
    _log.info("collector is up", host=host, server=settings.collector.server)
    stop.wait()
    agent.close()
