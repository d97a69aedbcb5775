"""What uvicorn is given as its protocol: reads from a socket into what is to take the bytes, and passes on all else."""

import asyncio
from typing import Any, cast

from uploader.http.server.http11 import LimitedProtocol
from uploader.http.server.write_batching import CorkedTransport

# What is read at once where no body is received: a head and a chunk of 64 KiB fit, and it stays below the size from which
# glibc asks the kernel for new pages each time.
_SCRATCH_BYTES = 96 << 10


class HttpConnection(asyncio.BufferedProtocol):
    """One connection."""

    # Shared by all: what is read is handed on before the next read.
    _scratch = memoryview(bytearray(_SCRATCH_BYTES))

    def __init__(self, **of_uvicorn: Any) -> None:
        self._http = LimitedProtocol(**of_uvicorn)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        corked = CorkedTransport(transport, self._http.loop)
        self._http.connection_made(cast(asyncio.Transport, corked))

    def get_buffer(self, _size_hint: int) -> memoryview:
        direct = self._http.direct
        return self._scratch if direct is None else direct.buffer(self._scratch)

    def buffer_updated(self, count: int) -> None:
        direct = self._http.direct
        if direct is None:
            self._http.data_received(self._scratch[:count])
        else:
            direct.received(count)

    def eof_received(self) -> None:
        self._http.eof_received()

    def pause_writing(self) -> None:
        self._http.pause_writing()

    def resume_writing(self) -> None:
        self._http.resume_writing()

    def connection_lost(self, error: Exception | None) -> None:
        self._http.connection_lost(error)
