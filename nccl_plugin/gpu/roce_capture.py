# ruff: noqa: TID251 -- lockstep.clock is not installed where there is a GPU
"""Which source ports the ranks' RoCE v2 packets have, as they come to the bridge between them."""

import socket
import struct
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from namespaces import RankNetwork

ROCE_PORT, ETH_P_ALL, OUTGOING, MSG_TRUNC = 4791, 3, 4, 0x20


class Capture:
    """Counts bytes of RoCE v2 by source address and port as they come to the bridge."""

    def __init__(self, network: RankNetwork) -> None:
        self.seen: Counter[tuple[str, int]] = Counter()
        with ThreadPoolExecutor(1) as inside:
            self._socket: socket.socket = inside.submit(self._open, network).result()
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _open(self, network: RankNetwork) -> socket.socket:
        network.enter_head()
        opened = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL))
        opened.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
        opened.settimeout(0.3)
        return opened

    def _read(self) -> None:
        frame = bytearray(64)
        while self._socket.fileno() >= 0:
            try:
                length, _, _, source = self._socket.recvmsg_into([frame], 0, MSG_TRUNC)
            except TimeoutError:
                continue
            except OSError:
                return
            is_ours = source[2] != OUTGOING and frame[12:14] == b"\x08\x00" and frame[23] == socket.IPPROTO_UDP
            ports = struct.unpack_from("!HH", frame, 34)
            if is_ours and source[0].startswith("eth0-") and ports[1] == ROCE_PORT:
                self.seen[socket.inet_ntoa(frame[26:30]), ports[0]] += length

    def close(self) -> dict[str, int]:
        time.sleep(0.5)
        self._socket.close()
        return {f"{address}:{port}": count for (address, port), count in sorted(self.seen.items())}
