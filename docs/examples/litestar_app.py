"""Uploads as a part of an application of Litestar: `uvicorn litestar_app:app`."""

from urllib.parse import unquote

from litestar import Litestar, asgi
from litestar.types import Receive, Scope, Send

from uploader.asgi import Identity, Uploader

TOKENS = {"secret of alice": "alice", "secret of bob": "bob"}


async def identify(scope: Scope) -> Identity | None:
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    user_id = TOKENS.get(shown.removeprefix("Bearer "))
    return None if user_id is None else Identity(user_id)


uploads = Uploader(identify=identify)


@asgi("/uploads", is_mount=True, copy_scope=True)
async def mounted(scope: Scope, receive: Receive, send: Send) -> None:
    # Litestar takes the prefix off the path, and puts a slash at its end.
    whole = {"path": unquote(scope["raw_path"].decode()), "root_path": "/uploads"}
    await uploads({**scope, **whole}, receive, send)


app = Litestar([mounted], lifespan=[lambda _app: uploads.running()])
