"""Sends many small files through the client of this project, in a process of its own: told all by its arguments."""

import asyncio
import json
import os
import sys
import time

from uploader.client import AsyncClient


async def send(url: str, token: str, count: int, at_once: int, limit_seconds: float) -> int:
    """How many became files."""
    numbers, until = iter(range(count)), time.monotonic() + limit_seconds
    async with AsyncClient(url, token, connections=at_once) as client:

        async def work() -> int:
            sent = 0
            for number in numbers:
                await client.upload(os.urandom(4096), f"many/{number % 100}/{number}.bin")
                sent += 1
                if time.monotonic() > until:
                    break
            return sent

        return sum(await asyncio.gather(*(work() for _ in range(at_once))))


def main() -> None:
    url, token, count, at_once, limit_seconds = sys.argv[1:]
    began, cpu_began = time.perf_counter(), time.process_time()
    sent = asyncio.run(send(url, token, int(count), int(at_once), float(limit_seconds)))
    said = {"files": sent, "seconds": time.perf_counter() - began, "cpu_seconds": time.process_time() - cpu_began}
    print(json.dumps(said))


if __name__ == "__main__":
    main()
