"""Servers and commands that die at crash points, one after the other on one data directory, and a client that comes to the
same end when it is told to do everything again."""

import contextlib
import shutil
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2

from tests.support.content import Content
from tests.support.invariants import checked_accounts
from tests.support.process import Process, Settings, answers, ended, owner_token, run_cli
from tests.support.resumable import RESUMABLE, Tus, metadata_of
from tests.support.servers import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from uploader.database.engine import Database

# Of a server that was to die by itself.
_DEATH_SECONDS = 120


class Sender:
    """One user who is the owner: by the API, and by tus as a client that asks for the offset after each lost answer."""

    http: httpx2.AsyncClient

    def __init__(self) -> None:
        # What was acknowledged of streams, and where those are that were opened, by their names.
        self.appended: dict[str, int] = {}
        self.paths: dict[str, str] = {}

    async def expect(self, method: str, path: str, *statuses: int, **more: Any) -> httpx2.Response:
        response = await self.http.request(method, path, **more)
        assert response.status_code in statuses, response.text
        return response

    async def ask(self, method: str, path: str, *statuses: int, **more: Any) -> Any:
        response = await self.expect(method, path, *statuses, **more)
        return response.json() if response.content else None

    async def files(self) -> list[Any]:
        files: list[Any] = (await self.ask("GET", "/me/files", 200))["files"]
        return files

    async def has_file(self, name: str) -> bool:
        return name in [file["name"] for file in await self.files()]

    async def open_by_id(self, content: Content, key: str) -> Any:
        body = {"name": f"{key}.bin", "size": content.size, "chunk_size": content.chunk_size}
        return await self.ask("POST", "/uploads", 200, 201, json=body, headers={"Idempotency-Key": key})

    async def opening(self, content: Content) -> Any:
        body = {"name": content.name, "size": content.size, "chunk_size": content.chunk_size}
        return await self.ask("POST", f"/files/{content.md5}", 200, 201, json=body)

    async def whole(self, content: Content) -> None:
        await self.expect("PUT", f"/files/{content.md5}", 200, 201, params={"name": content.name}, content=content.data)

    @property
    def tus(self) -> Tus:
        return Tus(self.http)

    async def opened(self, name: str, size: int | None = None, **said: Any) -> str:
        """By tus: one that was opened before, also if its opener did not hear of it; else a new one."""
        for upload in (await self.ask("GET", "/uploads", 200))["uploads"]:
            if upload["name"] == name:
                self.paths[name] = f"{RESUMABLE}/{upload['id']}"
        if name not in self.paths:
            self.paths[name] = await self.tus.created(size, Upload_Metadata=metadata_of(filename=name), **said)
        return self.paths[name]

    async def append(self, path: str, content: Content, *ends: int, **last: Any) -> None:
        """Up to each of the ends; `last`: what is said with the last byte."""
        for end in ends:
            offset = await self.offset(path)
            assert offset >= self.appended.get(path, 0), "appended bytes are lost"
            if offset < end:
                await self.patch(path, offset, content.data[offset:end], **last if end == content.size else {})
                self.appended[path] = end

    async def append_to_upload(self, content: Content, key: str, *ends: int) -> None:
        """To one that is opened by id."""
        answer = await self.open_by_id(content, key)
        if answer["state"] == "uploading":
            await self.append(f"{RESUMABLE}/{answer['upload']['id']}", content, *ends, content.size)

    async def patch(self, path: str, offset: int, data: bytes, **said: Any) -> None:
        self.tus.check(await self.tus.patch(path, offset, data, **said), 204)

    async def offset(self, path: str) -> int:
        return (await self.tus.state(path))[0]

    async def join(self, content: Content, middle: int) -> None:
        """Two parts that become one file."""
        if await self.has_file(content.name):
            return
        paths = []
        for number, data in enumerate((content.data[:middle], content.data[middle:])):
            paths.append(await self.opened(f"{content.name}-{number}", len(data), Upload_Concat="partial"))
            offset = await self.offset(paths[-1])
            if offset < len(data):
                await self.patch(paths[-1], offset, data[offset:])
        said = {"Upload_Concat": f"final;{paths[0]} {paths[1]}", "Upload_Metadata": metadata_of(filename=content.name)}
        self.tus.check(await self.tus.send("POST", RESUMABLE, **said), 201)
        await eventually(lambda: self.has_file(content.name))

    async def check_files(self, contents: Sequence[Content] | dict[str, Content]) -> None:
        """These are there, and no others."""
        by_name = contents if isinstance(contents, dict) else {content.name: content for content in contents}
        files = await self.files()
        assert sorted(file["name"] for file in files) == sorted(by_name)
        for file in files:
            downloaded = await self.expect("GET", f"/me/files/{file['id']}/content", 200)
            assert downloaded.content == by_name[file["name"]].data


class Dying:
    """A data directory, its database, and one server or command at a time."""

    def __init__(self, directory: Path, template: Path, settings: Settings) -> None:
        self.data, self.log = directory / "data", directory / "log"
        self.data.mkdir(mode=0o700)
        shutil.copy(template, self.data / "uploader.db")
        self.url = f"sqlite:///{self.data / 'uploader.db'}"
        self.database = Database(self.url)
        self.settings = {**settings, "DATA": str(self.data)}

    async def die_serving(self, armed: str, use: Callable[[str], Awaitable[None]]) -> None:
        """A server that dies at a point while it is used, or by itself."""
        port = free_port()
        doomed = Process(self.log, self.settings | {"TEST_CRASH_AT": armed}, "serve", "--port", str(port))

        async def is_dead_or_ready() -> bool:
            return doomed.process.poll() is not None or answers(port)

        with ended(doomed):
            await eventually(is_dead_or_ready)
            with contextlib.suppress(httpx2.TransportError):
                await use(f"http://127.0.0.1:{port}")
            with contextlib.suppress(subprocess.TimeoutExpired):
                doomed.process.wait(timeout=_DEATH_SECONDS)
            assert doomed.process.returncode == -signal.SIGKILL, f"{armed} was not passed"
        await checked_accounts(self.database)

    async def die_running(self, armed: str, *command: str) -> None:
        """A command that dies at a point."""
        assert run_cli(self.settings | {"TEST_CRASH_AT": armed}, *command).returncode == -signal.SIGKILL, armed
        await checked_accounts(self.database)

    def http(self, url: str) -> httpx2.AsyncClient:
        headers = {"Authorization": f"Bearer {owner_token(self.data)}"}
        return httpx2.AsyncClient(base_url=url, headers=headers, timeout=PATIENCE_SECONDS)
