"""Receiving and nothing else, for comparison: a thread for each connection reads into a warm buffer and writes a file.

What a server costs beyond this, it costs for what it does with the bytes. The third argument is how many of them it gathers
before it writes them; with a fourth, `hashed`, it computes both digests of them, too, before it answers.
"""

import hashlib
import os
import socket
import sys
import threading
from functools import partial
from pathlib import Path

_ANSWER = b"HTTP/1.1 201 Created\r\nContent-Length: 0\r\n\r\n"


def serve(connection: socket.socket, directory: Path, buffer_bytes: int, *, hashed: bool) -> None:
    """Until the client goes away."""
    buffer = memoryview(bytearray(os.urandom(buffer_bytes)))
    while received := connection.recv_into(buffer):
        end = bytes(buffer[:received]).find(b"\r\n\r\n") + 4
        head = bytes(buffer[:end])
        left = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
        name = head.split()[1].decode().strip("/")
        file = os.open(directory / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        try:
            _receive(connection, file, buffer, buffer[end:received], left, hashed=hashed)
        finally:
            os.close(file)
        connection.sendall(_ANSWER)


def _receive(
    connection: socket.socket, file: int, buffer: memoryview, first: memoryview, left: int, *, hashed: bool
) -> None:
    hashes = [hashlib.md5(usedforsecurity=False), hashlib.sha256()] if hashed else []
    for computing in hashes:
        computing.update(first)
    offset = os.pwrite(file, first, 0) if first else 0
    left -= offset
    while left:
        received = connection.recv_into(buffer, min(left, len(buffer)), socket.MSG_WAITALL)
        if not received:
            return
        offset += os.pwrite(file, buffer[:received], offset)
        for computing in hashes:
            computing.update(buffer[:received])
        left -= received


def main() -> None:
    directory, buffer_bytes, hashed = Path(sys.argv[1]), int(sys.argv[3]), "hashed" in sys.argv[4:]
    with socket.create_server(("127.0.0.1", int(sys.argv[2])), backlog=128) as listener:
        while True:
            connection, _ = listener.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            serving = partial(serve, connection, directory, buffer_bytes, hashed=hashed)
            threading.Thread(target=serving, daemon=True).start()


if __name__ == "__main__":
    main()
