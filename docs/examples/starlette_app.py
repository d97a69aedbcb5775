"""Uploads as a part of an application of Starlette, which knows its users: `uvicorn starlette_app:app`."""

from collections.abc import Mapping
from typing import Any

from starlette.applications import Starlette
from starlette.routing import Mount

from uploader.asgi import Identity, Uploader

TOKENS = {"secret of alice": "alice", "secret of bob": "bob"}


def identify(scope: Mapping[str, Any]) -> Identity | None:
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    user_id = TOKENS.get(shown.removeprefix("Bearer "))
    return None if user_id is None else Identity(user_id)


uploads = Uploader(identify=identify)
app = Starlette(routes=[Mount("/uploads", uploads)], lifespan=lambda _app: uploads.running())
