"""Uploads a file and lists what is there, in a program without an event loop.

blocking.py URL TOKEN FILE
"""

import sys

from uploader.client import Client, ClientError, File, Progress, Transfer


def show(progress: Progress) -> None:
    print(f"{progress.received_bytes} of {progress.size} bytes")


def main(url: str, token: str, path: str) -> None:
    with Client(url, token) as client:
        transfer: Transfer[File] = client.start(path, "videos/holiday.mp4", on_progress=show)
        try:
            file = transfer.result()
        except ClientError as error:
            sys.exit(f"{error.code}: {error.detail}")
        print(file.name, file.sha256)
        for each in client.files("videos/"):
            print(each.name, each.size)


if __name__ == "__main__":
    main(*sys.argv[1:])
