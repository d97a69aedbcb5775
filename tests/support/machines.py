"""State machines over the services themselves, on a real disk, a real Valkey and a real SQLite, with workers that die."""

import asyncio
import gc
import itertools
import os
import shutil
from collections.abc import Coroutine, Sequence
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import RuleBasedStateMachine, run_state_machine_as_test

from tests.support.dying import Death, dying
from tests.support.faults import sync_nothing
from tests.support.rows import Transactions
from tests.support.servers import PrivateRedis
from tests.support.stack import STORES_TIME
from uploader.bootstrap import Services
from uploader.settings import Settings

T = TypeVar("T")

_SETTINGS = settings(
    max_examples=int(os.environ.get("UPLOADER_TEST_EXAMPLES", "24")),
    stateful_step_count=20,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    phases=[Phase.generate],  # at most 20 steps are short enough to read as they are
    suppress_health_check=list(HealthCheck),
)


class Machine(RuleBasedStateMachine):
    """Services of its own for each example."""

    directory: Path
    template: Path
    server: PrivateRedis
    _examples = itertools.count()

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.died = False

    @classmethod
    def pass_examples(cls, directory: Path, template: Path, server: PrivateRedis) -> None:
        """`template`: a database that is copied for each."""
        cls.directory, cls.template, cls.server = directory, template, server
        # A task whose worker died says so when it is collected, with a traceback, for which Python 3.11 parses source. In
        # the middle of Hypothesis' own parsing that is a SystemError (https://github.com/python/cpython/issues/106905).
        gc.collect()
        with patch("os.fsync", lambda _: None):  # nobody cuts the power here
            run_state_machine_as_test(cls, settings=_SETTINGS)

    def serve(self, users: Sequence[str], total_space: int, **more: Any) -> None:
        root = self.directory / str(next(self._examples))
        root.mkdir()
        shutil.copy(self.template, root / "uploader.db")
        how = STORES_TIME | {"free_space_floor_bytes": 0} | more
        self.services = Services(Settings(data=root, redis_url=self.server.url, **how))
        self.database, self.pending = self.services.database, self.services.pending
        self.redis: Any = self.services.redis
        sync_nothing(self.database)
        self.runner.run(self._prepare(users, total_space))

    async def _prepare(self, users: Sequence[str], total_space: int) -> None:
        await self.redis.flushall()
        await self.services.storage.prepare()
        for user_id in users:
            await Transactions(self.database).create_user(user_id, total_space)

    def run(self, work: Coroutine[Any, Any, T], dies_at: int | None = None) -> T | None:
        """What `work` says, or None if its worker died."""
        with dying(dies_at):
            try:
                return self.runner.run(work)
            except Death:
                self.died = True
                return None

    async def come_to_rest(self) -> None:
        """At the end of an example."""

    def teardown(self) -> None:
        if hasattr(self, "services"):
            try:
                self.runner.run(self.come_to_rest())
            finally:
                self.runner.run(self.services.close())
                self.runner.close()
                shutil.rmtree(self.services.settings.data)
