"""The worked examples of docs/events.md, run as they stand on the page: a virus scan, and a thumbnailer."""

import base64
import contextlib
import hmac
import json
import os
import queue
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jwt
import pytest
from redis import Redis, ResponseError

from tests.support.consumer import SECRETS, events_file, webhook
from tests.support.documents import DOCS, blocks
from tests.support.process import Server, ended, wait_for
from uploader.client import Client, NotFound

PAGE = DOCS / "events.md"
JWT_SECRET = "a secret of thirty-two bytes at least"


def token_for(user_id: str) -> str:
    return jwt.encode({"sub": user_id, "exp": int(time.time()) + 900}, JWT_SECRET, algorithm="HS256")


def test_what_the_scanner_does_not_like_goes_and_what_is_a_picture_gets_a_thumbnail(
    tmp_path: Path, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = (base64, contextlib, hmac, json, jwt, os, queue, subprocess, tempfile, time)
    names = (BaseHTTPRequestHandler, Client, NotFound, Redis, ResponseError, token_for)
    page: dict[str, Any] = {each.__name__: each for each in (*modules, *names)}
    with socket_of_a_hook() as (hook_server, hook_url):
        tables = webhook("scan", hook_url, types='["file.finished"]') + '[sinks.log]\ntype = "redis"\n'
        settings = {
            "DATA": str(tmp_path / "data"),
            "FREE_SPACE_FLOOR": "0",
            "REDIS_URL": redis_url,
            "AUTH": "jwt",
            "JWT_SECRET": JWT_SECRET,
            "EVENTS": str(events_file(tmp_path / "events", tables)),
        }
        server = Server(tmp_path / "log", settings)
        for name, value in (
            *(("SCAN_URL", server.url), ("SCAN_JWT_SECRET", JWT_SECRET), ("SCAN_HOOK_SECRET", SECRETS[0])),
            *(("SCANNER", "! grep -q virus"), ("THUMBNAILER", "head -c 3")),
        ):
            monkeypatch.setenv(name, value)
        with ended(server), Client(server.url, token_for("alice")) as client:
            for containing in ("is_genuine(headers", "class Hook", "def thumbnail"):
                (code,) = blocks(PAGE, "python", containing)
                exec(compile(code, str(PAGE), "exec"), page)
            hook_server.RequestHandlerClass = page["Hook"]
            hook_server.server_activate()
            threading.Thread(target=hook_server.serve_forever, daemon=True).start()
            threading.Thread(target=page["scan_all"], daemon=True).start()
            reading = threading.Thread(target=read_while_there_is_a_group, args=(page["read"], redis_url))
            reading.start()
            client.upload(b"a virus", "a.exe")
            client.upload(b"picture", "photos/b.jpg")
            wait_for(lambda: {file.name for file in client.files()} == {"photos/b.jpg", "thumbnails/photos/b.jpg"})
            hook_server.shutdown()
            with Redis.from_url(redis_url) as redis:
                redis.xgroup_destroy("uploader:events", "thumbnails")
            reading.join()


def read_while_there_is_a_group(read: Callable[[Any], None], redis_url: str) -> None:
    with Redis.from_url(redis_url) as redis, contextlib.suppress(ResponseError):
        read(redis)


@contextlib.contextmanager
def socket_of_a_hook() -> Any:
    """A server that is bound, and knows no handler yet."""
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as server:
        yield server, f"http://127.0.0.1:{server.server_address[1]}/"
