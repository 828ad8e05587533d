"""A TCP relay that counts, and on request keeps, every byte between a node and the SuperLink."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress

CHUNK = 1 << 16


class Proxy:
    """Listens on a free port of the loopback and hands all connections on to ``port`` there."""

    def __init__(self, port: int, keep: bool = False):
        self.target = port
        self.keep = keep
        self.up = self.down = 0  # bytes from the node, bytes to it
        self.seen = bytearray()  # everything, both ways, when kept
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:  # closed
                return
            try:
                far = socket.create_connection(("127.0.0.1", self.target), timeout=10)
            except OSError:  # nobody is there now: the node tries again
                near.close()
                continue
            far.settimeout(None)
            for source, sink, name in ((near, far, "up"), (far, near, "down")):
                threading.Thread(target=self._relay, args=(source, sink, name), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket, name: str) -> None:
        with suppress(OSError):
            while data := source.recv(CHUNK):
                with self._lock:
                    setattr(self, name, getattr(self, name) + len(data))
                    if self.keep:
                        self.seen += data
                sink.sendall(data)
        for end in (source, sink):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def close(self) -> None:
        self._listener.close()
