"""The shapes of answers."""

from typing import Protocol

import msgspec
from starlette.responses import Response

# The message of the ASGI extension by which a part of a file is sent
# (asgi.readthedocs.io/en/latest/extensions.html#zero-copy-send), where the server offers it.
ZERO_COPY_SEND = "http.response.zerocopysend"
# Under this name `scope["extensions"]` holds `{"responses": an Interim}`, where the server offers that for a request.
INTERIM = "uploader.interim"


class Interim(Protocol):
    """Sends interim responses before an answer."""

    @property
    def has_room(self) -> bool:
        """Whether the client has taken what was sent before."""

    def send(self, status: int, headers: dict[str, str]) -> None:
        """Send one, unless the answer has begun or the client is gone."""


class Json(Response):
    """JSON of anything that msgspec encodes."""

    media_type = "application/json"
    render = staticmethod(msgspec.json.encode)  # type: ignore[assignment]
