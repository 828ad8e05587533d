"""A TCP relay that counts, and on request keeps, every byte between a node and the SuperLink."""

from __future__ import annotations

import select
import socket
import ssl
import struct
import threading
from contextlib import suppress
from pathlib import Path

CHUNK = 1 << 16


class Proxy:
    """Listens on a free port of the loopback and hands all connections on to ``port`` there.

    With ``keys``, the folder of the SuperLink's own key and certificates, it decrypts what it relays and encrypts it
    again, so that what it keeps can be read. Nobody without that key can.
    """

    def __init__(self, port: int, keep: bool = False, keys: Path | None = None):
        self.target, self.keep = port, keep
        self.up = self.down = 0  # bytes from the node, bytes to it
        self.streams: list[dict[str, bytearray]] = []  # of every connection, when they are kept
        self.near = self.far = None
        if keys:
            self.near = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.near.load_cert_chain(keys / "server.crt", keys / "server.key")
            self.far = ssl.create_default_context(cafile=keys / "ca.crt")
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
            threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self.target), timeout=10)
            far.settimeout(None)
            if self.near:
                near = self.near.wrap_socket(near, server_side=True)
                far = self.far.wrap_socket(far, server_hostname="127.0.0.1")
        except OSError:  # nobody is there now: refuse as the port itself would, so that the node tries again
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            near.close()
            return
        kept = {"up": bytearray(), "down": bytearray()}
        if self.keep:
            self.streams.append(kept)
        with suppress(OSError):
            self._relay(near, far, kept)
        for end in (near, far):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _relay(self, near: socket.socket, far: socket.socket, kept: dict[str, bytearray]) -> None:
        """Until one end closes. Both ways in one thread: a TLS connection must not be read and written at once."""
        ways = {near: (far, "up"), far: (near, "down")}
        while True:
            held = [end for end in ways if isinstance(end, ssl.SSLSocket) and end.pending()]  # decrypted already
            for source in held or select.select(list(ways), [], [])[0]:
                sink, way = ways[source]
                source.setblocking(False)  # what has come may be a part of a record, or nothing of the peer's own
                try:
                    data = source.recv(CHUNK)
                except (ssl.SSLWantReadError, BlockingIOError):
                    continue
                finally:
                    source.setblocking(True)
                if not data:
                    return
                with self._lock:
                    setattr(self, way, getattr(self, way) + len(data))
                if self.keep:
                    kept[way] += data
                sink.sendall(data)

    def close(self) -> None:
        self._listener.close()
