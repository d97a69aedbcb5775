"""Measures what it costs to look for revocations: `python -m benchmarks.revocations`.

A process with `uploader serve`'s services runs so many requests that wait, each of a token of its own, on SQLite or on
MariaDB. Counted are the queries in a second and their CPU, with nothing under way, with all that waits, and where a
revocation makes the process read the rows of all callers; and what it costs a request to be looked after.
"""

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import median

from sqlalchemy import event

from tests.conftest import emptied_on
from tests.support.servers import PRIVATE_DATABASES, PrivateRedis
from tests.support.stack import Stack, running_stack
from tests.support.waiting import eventually
from uploader.bootstrap import Services
from uploader.database import migrate
from uploader.database.engine import Database
from uploader.database.rights import Authority
from uploader.service.access import _hash
from uploader.service.revocations import Revocations, Running

_ENTERED, _REVOKED = 100_000, 20


async def measure(directory: Path, kind: str, requests: int, seconds: float) -> list[str]:
    """The lines of a report."""
    async with _stack(directory, kind) as stack:
        service, lines = stack.services.revocations, []
        lines.append(f"a request, to be looked after: {await _entering_us(service):.2f} µs")
        lines.append(f"at rest: {await _looked(stack, seconds)}")
        running = [await _wait(stack, number) for number in range(requests)]
        lines.append(f"{requests} requests: {await _looked(stack, seconds)}")
        await service.close()
        lines.append(f"{requests} requests, without a look: {await _looked(stack, seconds)}")
        service._watching = None
        service.look_after()
        cpu, began = time.process_time(), time.perf_counter()
        await stack.services.accounts.revoke(_token(0))
        await asyncio.wait({running[0]})
        ended_ms, cpu_ms = 1000 * (time.perf_counter() - began), 1000 * (time.process_time() - cpu)
        lines.append(
            f"{requests} requests, a revocation: its request ended after {ended_ms:.0f} ms, CPU {cpu_ms:.1f} ms"
        )
        ended = [await _ended_ms(stack, running[number], number) for number in range(1, _REVOKED + 1)]
        lines.append(
            f"{requests} requests, {_REVOKED} revocations by another process: each request ended after "
            f"{min(ended):.0f} to {max(ended):.0f} ms, median {median(ended):.0f}"
        )
        for task in running[1:]:
            task.cancel()
        await asyncio.wait(running)
        return lines


async def _ended_ms(stack: Stack, running: "asyncio.Task[None]", number: int) -> float:
    """Revoke a token as another process would, at any moment of the second between two looks."""
    await asyncio.sleep(number / _REVOKED)
    other = Services(stack.services.settings)
    await other.accounts.revoke(_token(number))
    began = time.perf_counter()
    await asyncio.wait({running})
    ended_ms = 1000 * (time.perf_counter() - began)
    await other.close()
    return ended_ms


async def _entering_us(service: Revocations) -> float:
    began = time.perf_counter()
    for _ in range(_ENTERED):
        service.enter(running := Running())
        service.leave(running)
    return 1e6 * (time.perf_counter() - began) / _ENTERED


async def _looked(stack: Stack, seconds: float) -> str:
    """How many queries, and what the process takes, beside nothing else."""

    async def rests() -> bool:
        return bool(stack.services.revocations._running) or stack.services.revocations._watching is None

    await eventually(rests)
    queries, engine = [0], stack.services.database.engine.sync_engine
    event.listen(engine, "checkout", lambda *_: queries.__setitem__(0, queries[0] + 1))
    cpu = time.process_time()
    await asyncio.sleep(seconds)
    cpu_ms = 1000 * (time.process_time() - cpu) / seconds
    return f"{queries[0] / seconds:.1f} queries a second, CPU {cpu_ms:.2f} ms a second"


def _token(number: int) -> str:
    return f"upl_{number:043}"


async def _wait(stack: Stack, number: int) -> "asyncio.Task[None]":
    row = await stack.services.accounts.add_token(_token(number), f"user{number}", admin=False)

    async def wait() -> None:
        running = Running(Authority(row.user_id, _hash(_token(number)), False))
        stack.services.revocations.enter(running)
        try:
            await asyncio.sleep(3600)
        finally:
            stack.services.revocations.leave(running)

    return asyncio.create_task(wait())


@asynccontextmanager
async def _stack(directory: Path, kind: str) -> AsyncIterator[Stack]:
    redis = PrivateRedis(directory / "redis").start()
    server = None if kind == "sqlite" else PRIVATE_DATABASES[kind](directory / kind).start()
    url = f"sqlite:///{directory / 'bench.db'}" if server is None else await emptied_on(server)
    database = Database(url, creates=True)  # the tables of a SQLite
    await migrate.upgrade(database)
    await database.close()
    async with running_stack(directory / "data", url, redis.url) as stack:
        yield stack
    redis.stop()
    if server is not None:
        server.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("kinds", nargs="*", default=("sqlite", *PRIVATE_DATABASES))
    arguments = parser.parse_args()
    for kind in arguments.kinds:
        with tempfile.TemporaryDirectory() as directory:
            for line in asyncio.run(measure(Path(directory), kind, arguments.requests, arguments.seconds)):
                print(f"{kind}: {line}")


if __name__ == "__main__":
    main()
