"""Nodes before one bucket, with one MariaDB and one Valkey: real servers, each with a data directory of its own."""

import asyncio
import json
import secrets
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Self

from sqlalchemy import text

from tests.support.gateways import Gateway
from tests.support.process import Server, ended, owner_token, run_cli
from tests.support.servers import PrivateMariaDB, PrivateRedis
from tests.support.stack import patient


class Fleet:
    """They run until this is left."""

    def __init__(
        self, directory: Path, gateway: Gateway, prefix: str, count: int, settings: Mapping[str, str] | None = None
    ) -> None:
        self._directory = directory
        self._count = count
        self._redis = PrivateRedis(directory / "redis")
        self._database = PrivateMariaDB(directory / "mariadb")
        self._settings = gateway.environment(prefix) | {
            "DATABASE_URL": self._database.url("uploader"),
            "REDIS_URL": self._redis.url,
            "SECRET": secrets.token_hex(32),
            **(settings or {}),
        }
        self._running = ExitStack()
        self.servers: list[Server] = []

    def __enter__(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            for store in (self._redis, self._database):
                stack.callback(store.stop)
                store.start()
            asyncio.run(self._create_database())
            upgraded = run_cli(self._of_node(0), "db", "upgrade")
            assert upgraded.returncode == 0, upgraded.stderr
            for number in range(self._count):
                self.servers.append(self._start(stack, number))
            self._running = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    async def _create_database(self) -> None:
        database = patient(self._database.url("mysql"))
        async with database.engine.connect() as connection:
            await connection.execute(text("CREATE DATABASE uploader"))
        await database.close()

    def _of_node(self, number: int) -> dict[str, str]:
        return self._settings | {"DATA": str(self._directory / f"node-{number}")}

    def _start(self, stack: ExitStack, number: int) -> Server:
        server = Server(self._directory / f"log-{number}", self._of_node(number))
        stack.enter_context(ended(server))
        return server

    def start_again(self, number: int) -> None:
        """After it was killed."""
        self.servers[number] = self._start(self._running, number)

    @property
    def owner_token(self) -> str:
        """The first node to start has told it."""
        return owner_token(self._directory / "node-0")

    def drifts(self) -> list[object]:
        """What `uploader reconcile` finds."""
        found = run_cli(self._of_node(0), "reconcile", "--json")
        drifts: list[object] = json.loads(found.stdout)["drifts"]
        return drifts
