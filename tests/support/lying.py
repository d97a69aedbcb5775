"""A small HTTP server that says whatever a test wants about its files, as no upload server would; or as an old one does."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit


def claimed(name: str, content: bytes, **lies: Any) -> dict[str, Any]:
    """A file as it is listed; its content goes by its id."""
    file_id = f"{abs(hash((name, content))):032x}"[-32:]
    file = {"id": file_id, "name": name, "md5": None, "sha256": sha256(content).hexdigest(), "size": len(content)}
    times = {"created_at": "2026-11-22T10:00:00Z", "modified_at": "2020-01-01T00:00:00Z"}
    return file | times | {"instant": False, "content": content} | lies


class Liar:
    """What it lists, whatever it is asked for. An old one knows prefixes, and nothing else."""

    def __init__(self, files: Sequence[dict[str, Any]], *, old: bool) -> None:
        self.files = files
        self.old = old
        self.url = ""

    def answer(self, method: str, target: str) -> tuple[int, bytes]:
        path, query = urlsplit(target).path, parse_qs(urlsplit(target).query)
        if method != "GET":
            return 405, b""
        listed = [{name: value for name, value in file.items() if name != "content"} for file in self.files]
        if path == "/me/files":
            prefix = query.get("prefix", [""])[0] if self.old else ""
            files = [file for file in listed if file["name"].startswith(prefix)]
            folders: dict[str, Any] = {"folders": []} if "delimiter" in query and not self.old else {}
            return 200, json.dumps({"files": files, "next": None} | folders).encode()
        for file, told in zip(self.files, listed, strict=True):
            if path == f"/me/files/{file['id']}":
                return 200, json.dumps(told).encode()
            if path == f"/me/files/{file['id']}/content":
                return 200, file["content"]
        return 404, b""


# Status, headers and body of the answer to a target; the connection ends with it.
Says = Callable[[str], tuple[int, dict[str, str], Iterable[bytes]]]


@contextmanager
def lying(
    files: Sequence[dict[str, Any]] = (), *, old: bool = False, says: Says | None = None, reason: str | None = None
) -> Iterator[Liar]:
    """Serve these on a free port; or nothing but what `says` says, with this reason phrase."""
    liar = Liar(files, old=old)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            if says is not None:
                self._say(*says(self.path))
                return
            status, body = liar.answer(self.command, self.path)
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def _say(self, status: int, headers: dict[str, str], body: Iterable[bytes]) -> None:
            self.rfile.read(int(self.headers.get("content-length", 0)))
            self.send_response(status, reason)
            for name, value in {**headers, "Connection": "close"}.items():
                self.send_header(name, value)
            self.end_headers()
            with suppress(ConnectionError):  # who has heard enough
                for block in body:
                    self.wfile.write(block)

        do_POST = do_PATCH = do_DELETE = do_GET  # noqa: N815

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        liar.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            yield liar
        finally:
            server.shutdown()
            thread.join()
