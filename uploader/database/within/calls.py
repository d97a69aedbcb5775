"""Calls that a transaction of SQLite makes from its thread to the event loop, and waits for.

What is called may write, too, as by the rows of a store on S3. Another transaction could begin only after this one, which
waits for it. So it is a part of this one: on MySQL, where it is one of its own, it has to be repeatable anyway, because
whatever calls it may be run again.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar, cast

from sqlalchemy import Engine
from sqlalchemy.ext.asyncio import AsyncConnection

from uploader.database.texts import Statements

T = TypeVar("T")
Work = Callable[[AsyncConnection], Awaitable[T]]


class CallingTransaction:
    """A transaction that writes, as those see it that it calls."""

    def __init__(self, connection: Statements, engine: Engine) -> None:
        self._connection = connection
        self._engine = engine
        self._waits = False

    def waits_on(self, engine: Engine) -> bool:
        """Whether it is in a call, and writes to this database."""
        return self._waits and self._engine is engine

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Around what it has called, on the loop. What is left running after that is no part of it any more."""
        self._waits = True
        try:
            yield
        finally:
            self._waits = False

    def run(self, work: "Work[T]") -> T:
        """Run `work` as a part of it. It waits meanwhile, so nobody else uses its connection."""
        return run_part(self._connection, work)


_caller: ContextVar[CallingTransaction | None] = ContextVar("caller", default=None)


@contextmanager
def calling(connection: Statements, engine: Engine) -> Iterator[None]:
    """In a thread, around the transactions that write."""
    token = _caller.set(CallingTransaction(connection, engine))
    try:
        yield
    finally:
        _caller.reset(token)


def caller_on(engine: Engine) -> CallingTransaction | None:
    """Whose part a transaction is that begins here and now; None: it is one of its own."""
    caller = _caller.get()
    return caller if caller is not None and caller.waits_on(engine) else None


def on_the_loop(work: Callable[..., Awaitable[T]]) -> Callable[..., Awaitable[T]]:
    """As `work`, for a transaction to call from its thread, which waits for it."""
    loop = asyncio.get_running_loop()

    async def called(*arguments: Any) -> T:
        async def call() -> T:
            caller = _caller.get()  # of the thread, whose context comes along
            if caller is None:
                return await work(*arguments)
            with caller.waiting():
                return await work(*arguments)

        return asyncio.run_coroutine_threadsafe(call(), loop).result()

    return called


def run_part(connection: Statements, work: "Work[T]") -> T:
    """Run a transaction as a part of a larger one, which goes on without it if it fails."""
    connection.run("SAVEPOINT part")
    try:
        result = run_to_its_end(work, connection)
    except Exception:
        # Some errors end the whole transaction (https://sqlite.org/lang_transaction.html), and a savepoint would begin
        # another one.
        if connection.in_transaction:
            connection.run("ROLLBACK TO part")
            connection.run("RELEASE part")
        raise
    connection.run("RELEASE part")
    return result


def run_to_its_end(work: "Work[T]", connection: Statements) -> T:
    """What a coroutine that never waits returns."""
    steps = work(cast(AsyncConnection, connection)).__await__()
    try:
        next(steps)
    except StopIteration as end:
        return cast(T, end.value)
    raise RuntimeError("a transaction waited for something else than the database")
