"""Workers of queues, as those run them who write one: a program of Python, and a command for each task."""

import asyncio
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import zipfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import httpx2
import pytest
from PIL import Image

from tests.support.consumer import events_file
from tests.support.content import Content
from tests.support.documents import DOCS, blocks
from tests.support.process import UPLOADER, Server, clamd_program, client_of_owner, ended, run_cli
from tests.support.waiting import PATIENCE_SECONDS, SERVER_SECONDS, wait_for
from uploader.client import AsyncTask, ServerProblem, Task, Unauthenticated, Worker

# The shortest that a worker may hold a task for.
LEASE_SECONDS = 1.0
QUEUES = ("scan", "thumbnails")
EXAMPLES, WORK = DOCS / "examples", DOCS / "work.md"
VIRUS = b"a virus of our own"


class Place:
    """A server with a queue, its owner, and a worker's token."""

    def __init__(self, directory: Path, more: str = "") -> None:
        table = '[queues.{}]\ntypes = ["file.finished"]\nmax_attempts = 9\n{}'
        self.data = directory / "data"
        self.settings = {
            "DATA": str(self.data),
            "FREE_SPACE_FLOOR": "0",
            "EVENTS": str(events_file(directory / "events", "".join(map(table.format, QUEUES, (more, ""))))),
        }
        self.server = Server(directory / "log", self.settings)
        self.owner = client_of_owner(self.server.url, self.data)
        self.token = self.token_of("scan")

    def token_of(self, queue: str) -> str:
        made = run_cli(self.settings, "token", "create", "worker", "--queue", queue)
        assert made.returncode == 0, made.stderr
        return made.stdout.split()[-1]

    def upload(self, seed: int, name: str | None = None) -> Content:
        content = Content(100_000, seed=seed, name=name or f"folder/{seed}.bin")
        self.store(content.name, content.data)
        return content

    def store(self, name: str, data: bytes) -> str:
        response = self.owner.post(f"/me/files?name={name}", content=data)
        assert response.status_code == 201, response.text
        return str(response.json()["file"]["id"])

    def figures(self, queue: str = "scan") -> dict[str, object]:
        (figures,) = [each for each in self.owner.get("/admin/work").json()["queues"] if each["queue"] == queue]
        return dict(figures)

    def is_done(self, queue: str = "scan") -> bool:
        return self.figures(queue)["waiting"] == 0

    def environment(self, token: str = "") -> dict[str, str]:
        return {**os.environ, "UPLOADER_URL": self.server.url, "UPLOADER_TOKEN": token or self.token}


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = Place(tmp_path)
    with ended(made.server), made.owner:
        yield made


@contextmanager
def running(arguments: Sequence[str | Path], log: Path, **how: Any) -> Iterator[None]:
    """A program that comes to its end by SIGTERM."""
    with log.open("ab") as output:
        program = subprocess.Popen(arguments, stdout=output, stderr=output, start_new_session=True, **how)
    try:
        yield
        program.terminate()
        assert program.wait(SERVER_SECONDS) == 0, log.read_text()
    finally:
        program.kill()
        program.wait()


async def served(worker: Worker, place: Place) -> None:
    """Let it work until nothing waits."""
    serving = asyncio.ensure_future(worker.serve())
    while not serving.done() and not await asyncio.to_thread(place.is_done):
        await asyncio.sleep(0.02)
    worker.stop()
    await asyncio.wait_for(serving, PATIENCE_SECONDS)


async def test_a_program_works_on_tasks_holds_them_and_gives_them_back(place: Place, tmp_path: Path) -> None:
    contents = {content.name: content for content in map(place.upload, range(5))}
    worker = Worker(place.server.url, place.token)
    seen: list[tuple[str, int, int]] = []

    @worker.handles("scan", lease=LEASE_SECONDS, at_once=3)
    def work(task: Task) -> None:
        seen.append((task.file.name, task.attempt, task.fence))
        if task.file.name.endswith("/1.bin") and task.attempt == 1:
            raise LookupError("no luck")
        if task.file.name.endswith("/2.bin"):
            for _ in range(12):  # longer than the lease
                threading.Event().wait(LEASE_SECONDS / 5)
        saved = task.save(tmp_path / task.id)
        assert saved.read_bytes() == contents[task.file.name].data

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("uploader.client.worker._REST_SECONDS", 0.0)
        await served(worker, place)
    attempts = Counter(name for name, _, _ in seen)
    assert attempts == {name: 2 if name.endswith("/1.bin") else 1 for name in contents}


async def test_a_coroutine_is_cancelled_when_its_lease_is_lost_and_the_next_holder_does_the_work(place: Place) -> None:
    place.upload(1)
    slow, fast = Worker(place.server.url, place.token), Worker(place.server.url, place.token)
    begun = asyncio.Event()
    fences: list[int] = []

    @slow.handles("scan", lease=LEASE_SECONDS)
    async def hang(task: AsyncTask) -> None:
        fences.append(task.fence)
        vars(task._queue)["tell_of"] = lost  # it reaches the server no more
        begun.set()
        await asyncio.Event().wait()

    async def lost(task_id: str, verb: str, **body: object) -> None:
        async with httpx2.AsyncClient(base_url=place.server.url) as client:
            headers = {"Authorization": f"Bearer {place.token}"}
            path = f"/queues/scan/tasks/{task_id}/{verb}"
            while fences == [1]:
                await asyncio.sleep(0.02)
            assert (await client.post(path, json=body, headers=headers)).json()["code"] == "lease-lost"
            raise ServerProblem("lost", code="lease-lost", status=409)

    @fast.handles("scan", lease="1m")
    async def work(task: AsyncTask) -> None:
        fences.append(task.fence)

    hanging = asyncio.ensure_future(slow.serve())
    await asyncio.wait_for(begun.wait(), PATIENCE_SECONDS)
    slow.stop()
    await served(fast, place)
    await asyncio.wait_for(hanging, PATIENCE_SECONDS)
    assert fences == [1, 2]


def test_who_left_while_waiting_takes_no_task_along(place: Place) -> None:
    body = b'{"wait_seconds": 30}'
    head = f"POST /queues/scan/claim HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {place.token}\r\n"
    with httpx2.Client(base_url=place.server.url, headers={"Authorization": f"Bearer {place.token}"}) as client:
        for seed, reads_on in enumerate((False, True)):
            with socket.create_connection(("127.0.0.1", place.server.port)) as left:
                left.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
                left.settimeout(0.2)
                with pytest.raises(TimeoutError):
                    left.recv(1)
                if reads_on:
                    left.shutdown(socket.SHUT_WR)
                else:
                    left.close()
                place.upload(seed)
                (task,) = client.post("/queues/scan/claim", json={"wait_seconds": 30}).json()["tasks"]
                assert task["attempt"] == 1
                if reads_on:
                    left.settimeout(SERVER_SECONDS)
                    assert left.recv(1 << 16).startswith(b"HTTP/1.1 200")


async def test_a_worker_with_the_wrong_token_ends_and_says_so(place: Place) -> None:
    user = run_cli(place.settings, "token", "create", "alice").stdout.split()[-1]
    worker = Worker(place.server.url, user)
    worker.handles("scan")(print)
    with pytest.raises(Unauthenticated):
        await worker.serve()
    with pytest.raises(ValueError, match="duration"):
        worker.handles("scan", lease="soon")


def test_a_command_runs_for_each_task_and_another_one_goes_on_for_who_was_killed(place: Place, tmp_path: Path) -> None:
    copies = tmp_path / "copies"
    copies.mkdir()
    keep = f'test -e {tmp_path}/goes-on || {{ touch {tmp_path}/hangs; sleep 600; }}; cp "$0" {copies}/"$1"'
    command = [str(UPLOADER), "queue", "work", "scan", "--lease", "1", "--", "sh", "-c", keep, "{path}", "{name}"]
    contents = [place.upload(seed) for seed in range(3)]
    with subprocess.Popen(command, env=place.environment(), start_new_session=True) as killed:
        try:
            wait_for((tmp_path / "hangs").exists)
        finally:
            os.killpg(killed.pid, signal.SIGKILL)
    (tmp_path / "goes-on").touch()
    with running(command, tmp_path / "log", env=place.environment()):
        wait_for(place.is_done)
    for content in contents:
        assert (copies / content.name.rpartition("/")[2]).read_bytes() == content.data


def test_a_command_that_fails_says_why_on_the_task(place: Place, tmp_path: Path) -> None:
    place.upload(1)
    code = "import os, sys, json; sys.exit('no ' + str(json.loads(os.environ['UPLOADER_TASK'])['attempt']))"
    command = [str(UPLOADER), "queue", "work", "scan", "--", sys.executable, "-c", code]
    with running(command, tmp_path / "log", env=place.environment()):
        wait_for(lambda: not place.figures()["held"] and place.figures()["attempts"] == 1)
    shown = json.loads(run_cli(place.settings, "queue", "tasks", "--json").stdout)
    assert [(queue["waiting"], queue["held"]) for queue in shown["queues"]] == [(1, 0)] * 2
    assert "scan" in run_cli(place.settings, "queue", "tasks").stdout


def test_file_name_runs_no_command_and_is_no_option(place: Place, tmp_path: Path) -> None:
    """A name that a shell, an option or a terminal would obey, by argument and by environment."""
    names = ["$(touch owned).txt", "`touch owned`", "a;touch owned", "-rf", "--help", "'\"\\u200b", "a\u200b b"]
    contents = {name: place.upload(seed, f"folder/{name}") for seed, name in enumerate(names[:5] + names[6:])}
    script = tmp_path / "script"
    script.write_text(
        '#!/bin/sh\n{ printf "%s\\n%s\\n" "$UPLOADER_NAME" "$1"; cat "$UPLOADER_PATH"; } > "$(mktemp kept.XXXXXX)"\n'
        "printf '\\033]0;owned\\007\\302\\2332J\\n' >&2\n"
    )
    script.chmod(0o755)
    command = [str(UPLOADER), "queue", "work", "scan", "--", str(script), "{name}"]
    with running(command, tmp_path / "log", env=place.environment(), cwd=tmp_path):
        wait_for(place.is_done)
    kept = [path.read_bytes().split(b"\n", 2) for path in tmp_path.glob("kept.*")]
    told = {("./" if name.startswith("-") else "") + name: content.data for name, content in contents.items()}
    assert {name.decode(): data for name, argument, data in kept if name == argument} == told
    assert not (tmp_path / "owned").exists()
    log = (tmp_path / "log").read_bytes()
    assert b"\\u001b]0;owned\\u0007\\u009b2J\n" in log and not re.search(b"\x1b|\x07|\xc2\x9b|\xe2\x80\x8b", log), log


@pytest.mark.parametrize("how", [["sh", "-c", "echo {name}"], ["bash", "-lc", "{name}"], ["ssh", "host", "{name}"]])
def test_command_that_would_run_a_name_does_not_start(how: list[str]) -> None:
    refused = run_cli({"URL": "http://127.0.0.1:9", "TOKEN": "token"}, "queue", "work", "scan", "--", *how)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "UPLOADER_NAME" in refused.stderr


def test_name_of_a_lying_server_does_not_break_a_command(tmp_path: Path) -> None:
    """A NUL, or more than an environment holds: the task goes back."""
    released: list[dict[str, Any]] = []
    queue = [{"name": name} for name in ("a\0b", "a" * 2_000_000, "a\x1b[2J", "..")]

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            tasks = []
            if self.path.endswith("/claim"):
                tasks = [{"id": "0", "lease": "l", "fence": 1, "attempt": 1, "lease_until": "2099-01-01T00:00:00Z"}]
                facts = {"id": "0", "md5": None, "sha256": "0" * 64, "size": 1, "instant": False}
                file = facts | {"created_at": "2026-01-01T00:00:00Z"} | (queue.pop() if queue else {})
                tasks = [task | {"event": {"subject": "x\x1b[2J", "data": {"file": file}}} for task in tasks]
            elif self.path.endswith("/release"):
                released.append(body)
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"tasks": tasks}).encode())

        def log_message(self, format: str, *args: object) -> None: ...  # noqa: A002

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        environment = os.environ | {
            "UPLOADER_URL": f"http://127.0.0.1:{server.server_address[1]}",
            "UPLOADER_TOKEN": "t",
        }
        command = [str(UPLOADER), "queue", "work", "scan", "--", "touch", str(tmp_path / "ran"), "{name}"]
        try:
            with running(command, tmp_path / "log", env=environment):
                wait_for(lambda: len(released) > 4)
        finally:
            server.shutdown()
            thread.join()
    assert all(each["error"].startswith(("InvalidName", "BadAnswer")) for each in released), released
    assert not (tmp_path / "ran").exists()
    assert b"\x1b" not in (tmp_path / "log").read_bytes()


def test_command_without_content_downloads_none(place: Place, tmp_path: Path) -> None:
    place.upload(1)
    judge = f'test -z "$UPLOADER_PATH" && test "$UPLOADER_NAME" = 1.bin && touch {tmp_path}/done'
    command = [str(UPLOADER), "queue", "work", "scan", "--no-content", "--", "sh", "-c", judge]
    with running(command, tmp_path / "log", env=place.environment()):
        wait_for((tmp_path / "done").exists)
        wait_for(place.is_done)
    (event,) = map(json.loads, run_cli(place.settings, "events", "list", "--json").stdout.splitlines())
    told = {each["sink"]: (each["state"], each["failed"]) for each in event["deliveries"]}
    assert told["scan"] == ("delivered", 0)
    both = run_cli({"URL": place.server.url}, "queue", "work", "scan", "--no-content", "--", "cat", "{path}")
    assert both.returncode == 2


def test_a_command_hands_dead_tasks_out_once_more(place: Place) -> None:
    place.upload(1)
    dead = False
    while not dead:
        (task,) = place.owner.post("/queues/scan/claim", json={"wait_seconds": 30}).json()["tasks"]
        told = {"lease": task["lease"], "error": "\x1b]0;owned\x07\x9b2J\u202e\u200b[red]no[/red]"}
        place.owner.post(f"/queues/scan/tasks/{task['id']}/release", json=told)
        dead = place.figures()["dead"] == 1
    shown = run_cli(place.settings, "queue", "tasks").stdout
    assert "dead" in shown and "\x1b" not in shown
    assert r"\u001b]0;owned\u0007\u009b2J\u202e\u200b[red]no[/red]" in re.sub(r"\s*│\n│[│\s]*", "", shown)
    assert not re.search("[\x07\x9b\u202e\u200b]", run_cli(place.settings, "queue", "tasks", "--json").stdout)
    missed = run_cli(place.settings, "queue", "replay", "sink")
    assert (missed.returncode, missed.stderr) == (1, "uploader: UPLOADER_EVENTS has no queue of this name.\n")
    for count, options in ((1, (task["id"],)), (0, ())):
        replayed = run_cli(place.settings, "queue", "replay", "scan", *options)
        assert replayed.stdout == f"tasks to be handed out once more: {count}\n", replayed.stderr
    (again,) = place.owner.post("/queues/scan/claim", json={"wait_seconds": 30}).json()["tasks"]
    assert (again["id"], again["attempt"], again["fence"]) == (task["id"], 1, task["fence"] + 1)


def test_the_examples_of_the_page_make_thumbnails(place: Place, tmp_path: Path) -> None:
    """docs/work.md, as it stands there; `convert` copies, in place of a program that need not be here."""
    (python,) = blocks(WORK, "python")
    (command,) = re.findall(r"^uploader (queue work thumbnails .*)$", WORK.read_text(), flags=re.MULTILINE)
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "convert").write_text('#!/bin/sh\nexec cp "$1" "$4"\n')
    (programs / "convert").chmod(0o755)
    (tmp_path / "thumbnails").mkdir()
    content = place.upload(1, "folder/a.jpg")
    environment = {**place.environment(), "PATH": f"{programs}:{os.environ['PATH']}"}
    imports = "import os, subprocess\nfrom uploader.client import Task, Worker\n"
    for arguments, made in (
        ([sys.executable, "-c", (imports + python).replace('"thumbnails", lease', '"scan", lease')], "{id}.jpg"),
        ([str(UPLOADER), *command.replace("work thumbnails", "work scan").split()], "a.jpg.jpg"),
    ):
        (file,) = place.owner.get("/me/files").json()["files"]
        target = tmp_path / "thumbnails" / made.format(id=file["id"])
        with running(arguments, tmp_path / "log", env=environment, cwd=tmp_path):
            wait_for(lambda: place.is_done() and target.exists())  # noqa: B023 (called here)
            assert target.read_bytes() == content.data
        replayed = run_cli(place.settings, "events", "replay", "--since", "1h", "--sink", "scan")
        assert replayed.stdout == "events to be sent once more: 1\n", replayed.stderr


async def test_a_gate_s_command_and_its_program_let_files_pass_or_refuse_them(tmp_path: Path) -> None:
    place = Place(tmp_path, "gate = true\n")
    with ended(place.server), place.owner:
        for seed in range(4):
            place.upload(seed)
        judge = ["sh", "-c", 'case "$0" in 1.bin) echo "bad one"; exit 3;; esac', "{name}"]
        words = [str(UPLOADER), "queue", "work", "scan", "--refuse-on", "3", "--", *judge]
        with running(words, tmp_path / "judge.log", env=place.environment()):
            await asyncio.to_thread(wait_for, place.is_done)
        place.upload(4)
        worker = Worker(place.server.url, place.token)

        @worker.handles("scan")
        def work(task: Task) -> None:
            task.refuse("worse")

        await served(worker, place)
        names = [file["name"] for file in place.owner.get("/me/files").json()["files"]]
        assert sorted(names) == [f"folder/{seed}.bin" for seed in (0, 2, 3)]
        refused = place.owner.get("/me/trash").json()["files"]
        assert [(file["name"], file["reason"], file["detail"]) for file in refused] == [
            ("folder/4.bin", "refused", "worse"),
            ("folder/1.bin", "refused", "bad one"),
        ]


@pytest.fixture
def clamd_path() -> Iterator[str]:
    """A PATH whose `clamdscan` asks a ClamAV that knows one virus."""
    with TemporaryDirectory() as made:
        directory = Path(made)  # a short one, as it has a socket
        (directory / "own.ndb").write_text(f"Own.Virus:0:*:{VIRUS.hex()}\n")
        configuration, wrapper = directory / "clamd.conf", directory / "clamdscan"
        configuration.write_text(
            f"LocalSocket {directory}/s\nDatabaseDirectory {directory}\nForeground yes\nAlertExceedsMax yes\n"
        )
        wrapper.write_text(f'#!/bin/sh\nexec {shutil.which("clamdscan")} --config-file={configuration} "$@"\n')
        wrapper.chmod(0o755)
        with running([clamd_program() or "clamd", f"--config-file={configuration}"], directory / "log"):
            wait_for((directory / "s").exists)
            yield f"{directory}:{os.environ['PATH']}"


def test_the_example_of_a_virus_scan_refuses_what_clamav_finds(tmp_path: Path, clamd_path: str) -> None:
    zipped, place = BytesIO(), Place(tmp_path, "gate = true\n")
    with zipfile.ZipFile(zipped, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("within", b" " * 1000 + VIRUS)
    scan: list[str | Path] = [sys.executable, EXAMPLES / "virus_scan.py"]
    environment = place.environment()
    with ended(place.server), place.owner:
        for name, data in (("a.exe", VIRUS), ("b.zip", zipped.getvalue()), ("c.txt", b"another virus")):
            place.store(name, data)
        with running(scan, tmp_path / "scan.log", env={**environment, "PATH": clamd_path}):
            wait_for(place.is_done)
        assert [file["name"] for file in place.owner.get("/me/files").json()["files"]] == ["c.txt"]
        refused = place.owner.get("/me/trash").json()["files"]
        assert sorted((file["name"], file["detail"]) for file in refused) == [
            (name, "Own.Virus.UNOFFICIAL") for name in ("a.exe", "b.zip")
        ]
        (command,) = re.findall(r"^uploader (queue work scan .*)$", WORK.read_text(), flags=re.MULTILINE)
        place.store("d.exe", VIRUS)
        with running([UPLOADER, *command.split()], tmp_path / "command.log", env={**environment, "PATH": clamd_path}):
            wait_for(place.is_done)
        assert place.owner.get("/me/trash").json()["files"][0]["detail"] == "d.exe: Own.Virus.UNOFFICIAL FOUND"
        place.store("d.txt", b"clean")
        with running(scan, tmp_path / "scan.log", env=environment):
            wait_for(lambda: place.figures()["attempts"] == 1 and not place.figures()["held"])
        assert place.figures()["waiting"] == 1, "without a clamd nothing is clean"


def test_the_example_of_thumbnails_makes_them_of_pictures(place: Place, tmp_path: Path) -> None:
    made, environment = tmp_path / "made", place.environment(place.token_of("thumbnails"))
    made.mkdir()
    pictures = {}
    for kind in ("JPEG", "WEBP", "PNG"):
        Image.new("RGB", (1000, 500), "red").save(picture := BytesIO(), kind)
        pictures[place.store(f"a.{kind}", picture.getvalue())] = (256, 128)
    place.store("b.jpg", b"no picture")
    place.store("c.png", picture.getvalue()[:-100])
    with running([sys.executable, EXAMPLES / "thumbnails.py", made], tmp_path / "log", env=environment):
        wait_for(lambda: place.is_done("thumbnails"))
    sizes = {}
    for path in made.iterdir():
        with Image.open(path) as thumbnail:
            sizes[path.stem] = thumbnail.size
    assert sizes == pictures
