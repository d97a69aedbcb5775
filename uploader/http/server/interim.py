"""Interim responses (RFC 9110, section 15.2) of an application, which ASGI has no message for: offered in
`scope["extensions"]`, for uvicorn's HTTP/1.1."""

import weakref
from http import HTTPStatus

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from uploader.http.shared.responses import INTERIM

# Of requests that an application may have something to say of before it answers them. PUT sends chunks, and is left alone.
_METHODS = frozenset({"POST", "PATCH"})
_PHRASES = {104: "Upload Resumption Supported"}


class InterimResponses:
    """Those of one request."""

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle: RequestResponseCycle = weakref.proxy(cycle)

    @property
    def has_room(self) -> bool:
        """Whether the client has taken what was written before. One that does not read yet is not told more and more."""
        return not self._cycle.transport.get_write_buffer_size()

    def send(self, status: int, headers: dict[str, str]) -> None:
        """Write one, unless the answer has begun or the client is gone."""
        cycle = self._cycle
        if cycle.response_started or cycle.disconnected or cycle.transport.is_closing():
            return
        lines = [f"HTTP/1.1 {status} {_PHRASES.get(status) or HTTPStatus(status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        cycle.transport.write("\r\n".join([*lines, "", ""]).encode("latin-1"))


def offer_interim(cycle: RequestResponseCycle) -> None:
    """To the application, for one request. A client of HTTP/1.0 would take one for the answer."""
    scope = cycle.scope
    if scope["method"] in _METHODS and scope["http_version"] == "1.1":
        scope.setdefault("extensions", {})[INTERIM] = {"responses": InterimResponses(cycle)}
