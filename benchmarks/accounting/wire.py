"""Speaks to Valkey with as little of a client as there can be, so that the client is not what is measured."""

import socket
from collections.abc import Sequence

import hiredis


def pack(*words: str | int | bytes) -> bytes:
    """One command."""
    parts = [b"*%d\r\n" % len(words)]
    for word in words:
        data = word if isinstance(word, bytes) else str(word).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


class Wire:
    """One connection that sends many commands before it reads the replies."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader = hiredis.Reader()

    def send(self, commands: Sequence[bytes]) -> list[object]:
        """The replies, in order."""
        self._socket.sendall(b"".join(commands))
        replies: list[object] = []
        while len(replies) < len(commands):
            self._reader.feed(self._socket.recv(1 << 18))
            while (reply := self._reader.gets()) is not False:
                if isinstance(reply, Exception):
                    raise reply
                replies.append(reply)
        return replies

    def close(self) -> None:
        self._socket.close()
