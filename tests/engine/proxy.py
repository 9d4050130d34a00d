"""A TCP proxy between a client and one server, which may keep back what the server answers."""

from __future__ import annotations

import selectors
import socket
import threading
from contextlib import suppress
from typing import Final

READ_BYTES: Final = 1 << 16


class Proxy:
    """Passes on bytes in both directions; while `is_deaf`, only those to the server.

    Args:
        port: of the server
        address: of both
    """

    def __init__(self, port: int, address: str = "127.0.0.1") -> None:
        self.is_deaf = False
        self._server = (address, port)
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        # What ends it, and each socket with the one that gets what is read from it.
        self._end, self._wake = socket.socketpair()
        self._others: dict[socket.socket, socket.socket] = {}
        self._clients: set[socket.socket] = set()
        self._selector = selectors.DefaultSelector()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Cut all connections, and take no more."""
        self._wake.send(b"x")
        self._thread.join()
        for each in (*self._others, self._listener, self._end, self._wake):
            each.close()

    def _run(self) -> None:
        for each in (self._listener, self._end):
            self._selector.register(each, selectors.EVENT_READ)
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._end:
                    return
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj in self._others:
                    assert isinstance(key.fileobj, socket.socket)
                    self._pass_on(key.fileobj)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            server = socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        self._clients.add(client)
        for one, other in ((client, server), (server, client)):
            self._others[one] = other
            self._selector.register(one, selectors.EVENT_READ)

    def _pass_on(self, source: socket.socket) -> None:
        target = self._others[source]
        try:
            data = source.recv(READ_BYTES)
            if data and (source in self._clients or not self.is_deaf):
                target.sendall(data)
        except OSError:
            data = b""
        if not data:
            for each in (source, target):
                self._selector.unregister(each)
                del self._others[each]
                self._clients.discard(each)
                with suppress(OSError):
                    each.close()
