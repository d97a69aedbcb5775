"""Uploads a file and lists what is there, in a program with an event loop.

asynchronous.py URL TOKEN FILE
"""

import asyncio
import sys

from uploader.client import AsyncClient, AsyncTransfer, ClientError, File, Progress


def show(progress: Progress) -> None:
    print(f"{progress.received_bytes} of {progress.size} bytes")


async def main(url: str, token: str, path: str) -> None:
    async with AsyncClient(url, token) as client:
        transfer: AsyncTransfer[File] = client.start(path, "videos/holiday.mp4", on_progress=show)
        try:
            file = await transfer
        except ClientError as error:
            sys.exit(f"{error.code}: {error.detail}")
        print(file.name, file.sha256)
        async for each in client.files("videos/"):
            print(each.name, each.size)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
