"""Uploads as a part of an application of FastAPI, which knows its users: `uvicorn fastapi_app:app`."""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import FastAPI, Form

from uploader.asgi import File, Identity, Uploader
from uploader.contrib.fastapi import finished_file

TOKENS = {"secret of alice": "alice", "secret of bob": "bob"}


def identify(scope: Mapping[str, Any]) -> Identity | None:
    shown = dict(scope["headers"]).get(b"authorization", b"").decode("latin-1")
    user_id = TOKENS.get(shown.removeprefix("Bearer "))
    return None if user_id is None else Identity(user_id)


uploads = Uploader(identify=identify)
app = FastAPI(lifespan=lambda _app: uploads.running())
app.mount("/uploads", uploads)
finished: list[str] = []


@uploads.on("file.finished")
async def remember(event: dict[str, Any]) -> None:
    finished.append(event["data"]["file"]["id"])


@app.get("/finished")
async def list_finished() -> list[str]:
    return finished


@app.post("/films")
async def add_film(film: Annotated[File, finished_file(uploads, Form(alias="film"))]) -> dict[str, Any]:
    return {"name": film.name, "size": film.size, "url": "/uploads" + await uploads.files.link(film)}
