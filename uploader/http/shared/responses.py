"""The shapes of answers."""

import msgspec
from starlette.responses import Response

# The message of the ASGI extension by which a part of a file is sent
# (asgi.readthedocs.io/en/latest/extensions.html#zero-copy-send), where the server offers it.
ZERO_COPY_SEND = "http.response.zerocopysend"


class Json(Response):
    """JSON of anything that msgspec encodes."""

    media_type = "application/json"
    render = staticmethod(msgspec.json.encode)  # type: ignore[assignment]
