"""A start waits for the database, the store and the disk. A server process answers `/livez` meanwhile.

Only a ConfigurationError ends a start: waiting changes no setting, no newer schema and no other installation's data. A
SchemaBehind does not end a start, because an upgrade may follow.
"""

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeVar

from uploader.database.engine import is_refusal
from uploader.diagnosis.health import Start
from uploader.errors import ConfigurationError, DatabaseDamaged, SchemaBehind, UploaderError

logger = logging.getLogger(__name__)

T = TypeVar("T")

_FIRST_PAUSE_SECONDS, _MAX_PAUSE_SECONDS = 0.1, 5.0
# A longer first attempt goes on in the background, as with a database that does not answer.
_FIRST_ATTEMPT_SECONDS = 10.0
BEGINS = "it has just begun"


def is_final(error: Exception) -> bool:
    """Return whether waiting can't mend an error."""
    return isinstance(error, ConfigurationError) and not isinstance(error, SchemaBehind)


def ends_command(error: Exception) -> bool:
    """Return whether a command gives up at once: a person has to act, or the program has a bug."""
    if isinstance(error, ConfigurationError | DatabaseDamaged) or not isinstance(error, UploaderError | OSError):
        return True
    return is_refusal(error.__cause__)


async def patiently(
    attempt: Callable[[], Awaitable[T]],
    *,
    seconds: float = math.inf,
    ends: Callable[[Exception], bool] = is_final,
    tell: Callable[[str, Exception | None], None],
) -> T:
    """Return the result of the first attempt that succeeds. `tell` gets the reason of each failed attempt, and the error if
    it is the first of its kind. Raises an attempt's error at once if `ends` returns true for the error, otherwise the last
    error after `seconds`."""
    until, pause_seconds, kinds = time.monotonic() + seconds, _FIRST_PAUSE_SECONDS, set[type[Exception]]()
    while True:
        try:
            return await attempt()
        except Exception as error:
            if ends(error) or time.monotonic() + pause_seconds > until:
                raise
            reason = error.reason if isinstance(error, UploaderError) else str(error) or type(error).__name__
            tell(reason, None if type(error) in kinds else error)
            kinds.add(type(error))
        await asyncio.sleep(pause_seconds)
        pause_seconds = min(2 * pause_seconds, _MAX_PAUSE_SECONDS)


@asynccontextmanager
async def starting(
    start: Start,
    serving: Callable[[], AbstractAsyncContextManager[None]],
    *,
    prepare: Callable[[], Awaitable[object]],
    is_prepared: bool = False,
    give_up: Callable[[], None],
) -> AsyncIterator[None]:
    """Enter `serving` in the background, with as many attempts as necessary. Returns after the first attempt, at the latest
    after ten seconds. `prepare` runs before each attempt, except before the first one if `is_prepared`. `give_up` is called
    when a later attempt fails for good; `start.failure` has the reason. Raises ConfigurationError if the first attempt
    does."""
    ends, answered = asyncio.Event(), asyncio.Event()
    start.waits_for = BEGINS

    def tell(reason: str, news: Exception | None) -> None:
        start.waits_for = reason
        answered.set()
        if news is not None:
            unforeseen = None if isinstance(news, UploaderError | OSError) else news
            logger.warning("the start waits", extra={"reason": reason}, exc_info=unforeseen)

    async def enter(stack: AsyncExitStack) -> None:
        nonlocal is_prepared
        if not is_prepared:
            await prepare()
        is_prepared = False
        await stack.enter_async_context(serving())

    async def serve() -> None:
        async with AsyncExitStack() as stack:
            try:
                await patiently(lambda: enter(stack), tell=tell)
            except ConfigurationError as error:
                start.failure = start.waits_for = error.detail
                if not answered.is_set():
                    raise
                logger.critical("the start failed", extra={"reason": error.detail})
                give_up()
                return
            if start.waits_for != BEGINS:
                logger.warning("the start goes on")
            start.waits_for = None
            answered.set()
            await ends.wait()

    task = asyncio.create_task(serve(), name="start")
    first = asyncio.create_task(answered.wait())
    try:
        await asyncio.wait({task, first}, timeout=_FIRST_ATTEMPT_SECONDS, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        answered.set()
        yield
    finally:
        first.cancel()
        ends.set()
        if start.waits_for is not None:
            task.cancel()
        await asyncio.wait({task})
    if not task.cancelled():
        await task
