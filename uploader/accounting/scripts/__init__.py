"""Loads the Lua scripts and runs them: one file a verb, the preludes put before each."""

import hashlib
import logging
from importlib.resources import files
from typing import Any

from redis.exceptions import NoScriptError, ResponseError

from uploader.accounting.connection import AWAY, RedisConnection
from uploader.errors import Unavailable

logger = logging.getLogger(__name__)

_PRELUDES = ("_delay.lua", "_era.lua")


class Script:
    """One verb, run by its SHA-1 and loaded where the server does not have it (`EVALSHA`, `SCRIPT LOAD`)."""

    def __init__(self, name: str) -> None:
        self.name = name
        folder = files(__name__)
        self.source = "\n".join((folder / part).read_text() for part in (*_PRELUDES, f"{name}.lua"))
        # Redis names scripts by their SHA-1; nothing secret hangs on it.
        self.sha = hashlib.sha1(self.source.encode(), usedforsecurity=False).hexdigest()

    async def run(self, redis: RedisConnection, keys: list[str], arguments: list[Any]) -> Any:
        """The script's reply. Every script is idempotent, so the client's own retries are safe.

        Raises Unavailable if Redis is away.
        """
        try:
            try:
                return await redis.evalsha(self.sha, len(keys), *keys, *arguments)
            except NoScriptError:
                return await redis.eval(self.source, len(keys), *keys, *arguments)
        except AWAY as error:
            if isinstance(error, ResponseError):
                # Not away: it refuses (out of memory, read-only, or a fault in a script). Somebody has to look.
                logger.error("Redis refuses a script", extra={"script": self.name, "reason": str(error)})
            raise Unavailable("The accounting store is away; nothing was acknowledged.") from error
