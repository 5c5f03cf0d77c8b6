"""A TCP proxy on loopback that loses replies, drops connections or refuses them, on command."""

import contextlib
import socket
import threading
from typing import Literal

Behaviour = Literal["forward", "lose_replies", "refuse"]


class TcpProxy:
    """Stands between a client and a server; `behaviour` may change at any time."""

    def __init__(self, target_port: int) -> None:
        self.behaviour: Behaviour = "forward"
        self.lost_replies = 0
        self._target_port = target_port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()
        self._guard = threading.Lock()
        threading.Thread(target=self._accept, daemon=True).start()

    def drop_connections(self) -> None:
        with self._guard:
            sockets, self._open = self._open, set()
        for one in sockets:
            _close(one)

    def close(self) -> None:
        _close(self._listener)
        self.drop_connections()

    def __enter__(self) -> "TcpProxy":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            if self.behaviour == "refuse":
                _close(client)
                continue
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target_port), timeout=5)
        except OSError:
            _close(client)
            return
        server.settimeout(None)
        with self._guard:
            self._open |= {client, server}
        threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
        self._pump(server, client, True)

    def _pump(self, source: socket.socket, sink: socket.socket, is_reply: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if is_reply and self.behaviour == "lose_replies":
                    self.lost_replies += 1
                    break
                sink.sendall(data)
        for one in (source, sink):
            _close(one)
            with self._guard:
                self._open.discard(one)


def _close(one: socket.socket) -> None:
    with contextlib.suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
