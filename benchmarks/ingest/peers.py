"""The other servers, each as its documentation has it for the best throughput of one process."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.ingest import installing
from benchmarks.ingest.contender import PutContender, TusContender, running
from tests.support.servers import free_port

_NGINX = """
daemon off;
worker_processes 1;
{user}
pid {directory}/pid;
error_log {directory}/error.log;
events {{ worker_connections 4096; }}
http {{
  client_max_body_size 0;
  client_body_temp_path {directory}/temp;
  proxy_temp_path {directory}/proxy;
  fastcgi_temp_path {directory}/fastcgi;
  uwsgi_temp_path {directory}/uwsgi;
  scgi_temp_path {directory}/scgi;
  {more}
  server {{
    listen 127.0.0.1:{port};
    root {directory}/files;
    location / {{ dav_methods PUT; }}
  }}
}}
"""
_TUNED = "client_body_buffer_size 1m; access_log off; keepalive_requests 1000000; tcp_nodelay on;"
_TUSPYSERVER = """
import sys
import uvicorn
from fastapi import FastAPI
from tuspyserver import create_tus_router

app = FastAPI()
app.include_router(create_tus_router(prefix="files", files_dir=sys.argv[1], max_size=1 << 50))
uvicorn.run(app, port=int(sys.argv[2]), log_level="warning", access_log=False)
"""
_TUS_NODE = """
import {{ Server }} from "@tus/server";
import {{ FileStore }} from "@tus/file-store";

const datastore = new FileStore({{ directory: {files} }});
new Server({{ path: "/files", datastore }}).listen({{ host: "127.0.0.1", port: {port} }});
"""


@contextmanager
def nginx(directory: Path, *, tuned: bool) -> Iterator[PutContender]:
    """Its dav module; `tuned` with a body buffer of 1 MiB, else as shipped but for what it needs to take a PUT."""
    program, port, files = installing.program("nginx"), free_port(), _prepared(directory)
    (directory / "temp").mkdir()
    user = "user root;" if os.getuid() == 0 else ""
    more = _TUNED if tuned else f"access_log {directory}/access.log;"
    configuration = directory / "nginx.conf"
    configuration.write_text(_NGINX.format(directory=directory, port=port, user=user, more=more))
    with running([program, "-p", directory, "-c", configuration], directory, port) as pid:
        yield PutContender(port, [pid], files)


@contextmanager
def tuspyserver(directory: Path) -> Iterator[TusContender]:
    python, port, files = installing.python(), free_port(), _prepared(directory)
    application = directory / "application.py"
    application.write_text(_TUSPYSERVER)
    with running([python, application, files, str(port)], directory, port) as pid:
        yield TusContender(port, [pid], files)


@contextmanager
def tus_node(directory: Path) -> Iterator[TusContender]:
    modules, port, files = installing.node_modules(), free_port(), _prepared(directory)
    # Node looks for modules beside the file that imports them.
    application = modules / f"application-{port}.mjs"
    application.write_text(_TUS_NODE.format(files=json.dumps(str(files)), port=port))
    try:
        with running(["node", application], directory, port) as pid:
            yield TusContender(port, [pid], files)
    finally:
        application.unlink()


@contextmanager
def copyparty(directory: Path) -> Iterator[PutContender]:
    """Quiet, and without the checksum that it makes of what it receives: it can be turned off, so its best is without."""
    python, port, files = installing.python(), free_port(), _prepared(directory)
    options = ["-q", "--wram", "--put-ck", "no", "--no-thumb", "--no-crt", "-i", "127.0.0.1", "-p", str(port)]
    command = [str(python), "-m", "copyparty", *options, "-v", f"{files}::rw"]
    with running(command, directory, port, os.environ | {"XDG_CONFIG_HOME": str(directory)}) as pid:
        yield PutContender(port, [pid], files)


@contextmanager
def rsync(directory: Path, files: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of a daemon that gives and takes files of a directory, as `rsync://…/files`."""
    program, port = installing.program("rsync"), free_port()
    directory.mkdir(parents=True, exist_ok=True)
    configuration = directory / "rsyncd.conf"
    module = f"path = {files}\nread only = no\nuid = {os.getuid()}\ngid = {os.getgid()}\n"
    configuration.write_text(f"use chroot = no\n[files]\n{module}")
    command: list[str | Path] = [
        program,
        "--daemon",
        "--no-detach",
        "--address=127.0.0.1",
        f"--port={port}",
        f"--config={configuration}",
    ]
    with running(command, directory, port) as pid:
        yield port, pid


@contextmanager
def rclone(directory: Path, files: Path) -> Iterator[tuple[int, int]]:
    """The port and the process of one that serves a directory over HTTP."""
    program, port = installing.program("rclone"), free_port()
    directory.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [program, "serve", "http", "--config", "", "--addr", f"127.0.0.1:{port}", files]
    with running(command, directory, port) as pid:
        yield port, pid


@contextmanager
def bare(directory: Path, *, buffer_bytes: int = 1 << 20, hashed: bool = False) -> Iterator[PutContender]:
    """Receiving and nothing else, but perhaps hashing."""
    port, files, hashing = free_port(), _prepared(directory), ["hashed"] if hashed else []
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "benchmarks.ingest.bare",
        files,
        str(port),
        str(buffer_bytes),
        *hashing,
    ]
    with running(command, directory, port) as pid:
        yield PutContender(port, [pid], files)


def _prepared(directory: Path) -> Path:
    files = directory / "files"
    files.mkdir(parents=True)
    return files
