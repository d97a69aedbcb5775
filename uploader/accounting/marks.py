"""Of which installation the keys in Redis are, and of which format."""

import re
from collections.abc import Awaitable
from typing import Any

from uploader.accounting.keys import FORMAT, INSTALLATION
from uploader.accounting.scripting import AWAY, RedisConnection
from uploader.errors import ConfigurationError, Unavailable

_MARK = re.compile(r"([0-9]+) ([0-9a-f]{32})")


class RedisMark:
    """The one key that says so."""

    def __init__(self, redis: RedisConnection) -> None:
        self._redis = redis

    async def read(self) -> str | None:
        """The installation; None if Redis says of none. Raises ConfigurationError, Unavailable."""
        return _parse(await self._tried(self._redis.get(INSTALLATION)))[1]

    async def claim(self, installation: str) -> str:
        """Mark what has no mark, because it is new or was lost, and anew what an older version marked; returns whose it is.
        Raises as `read`."""
        there = await self._tried(self._redis.set(INSTALLATION, f"{FORMAT} {installation}", nx=True, get=True))
        version, marked = _parse(there)
        if marked == installation and version < FORMAT:
            await self.replace(installation)
        return marked or installation

    async def replace(self, installation: str) -> None:
        """Mark it, whatever it says now. Raises Unavailable."""
        await self._tried(self._redis.set(INSTALLATION, f"{FORMAT} {installation}"))

    async def _tried(self, command: Awaitable[Any]) -> Any:
        try:
            return await command
        except AWAY as error:
            raise Unavailable("The accounting store is away.") from error


def _parse(value: bytes | None) -> tuple[int, str | None]:
    """The format, and the installation."""
    if value is None:
        return FORMAT, None
    mark = _MARK.fullmatch(value.decode(errors="replace"))
    if mark is None:
        raise ConfigurationError(
            f"Redis has a key {INSTALLATION} that is not this program's: give it a Redis of its own"
        )
    if int(mark[1]) > FORMAT:
        raise ConfigurationError(f"Redis has keys of format {mark[1]}, newer than this version's {FORMAT}")
    return int(mark[1]), mark[2]
