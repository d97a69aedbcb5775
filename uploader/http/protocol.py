"""uvicorn's HTTP/1.1 protocol with a time-out for the headers of a request, which neither uvicorn nor ASGI has."""

import asyncio

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

# Under this name the application's lifespan state carries the time-out, in seconds.
HEADER_TIMEOUT_STATE = "header_timeout_seconds"


class TimedProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers do not arrive in time."""

    _header_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_header_timer()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._start_header_timer()

    def on_headers_complete(self) -> None:
        self._stop_header_timer()
        super().on_headers_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_header_timer()
        super().connection_lost(exc)

    def _start_header_timer(self) -> None:
        if self._header_timer is None:
            seconds = self.app_state[HEADER_TIMEOUT_STATE]
            self._header_timer = self.loop.call_later(seconds, self._headers_are_late)

    def _stop_header_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _headers_are_late(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()
