"""Uploads as a part of an application of FastAPI, which knows its users: `uvicorn fastapi_app:app`."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from fastapi import FastAPI

from uploader.asgi import Identity, Uploader

TOKENS = {"secret of alice": "alice", "secret of bob": "bob"}


def identify(scope: Mapping[str, Any]) -> Identity | None:
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    user_id = TOKENS.get(shown.removeprefix("Bearer "))
    return None if user_id is None else Identity(user_id)


uploads = Uploader(identify=identify)  # its settings are UPLOADER_DATA and so on, or keywords: data="/srv/uploads"
finished: list[str] = []


@uploads.on("file.finished")
async def remember(event: dict[str, Any]) -> None:
    finished.append(event["data"]["file"]["id"])


@asynccontextmanager
async def lifespan(_app: FastAPI) -> AsyncIterator[Mapping[str, Any]]:
    async with uploads.running() as state:
        yield state


app = FastAPI(lifespan=lifespan)
app.mount("/uploads", uploads)


@app.get("/finished")
async def list_finished() -> list[str]:
    return finished
