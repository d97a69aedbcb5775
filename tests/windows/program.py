"""`python program.py URL TOKEN`, beside a `film.bin`: a program that uses the client, for a Python of Windows."""

import os
import sys
from pathlib import Path

from uploader.client import Client, TargetBusy, Worker
from uploader.client.download import partial_of

assert sys.platform == "win32"
url, token = sys.argv[1:]
original, copy = Path("film.bin"), Path("copy.bin")
with Client(url, token) as client:
    file = client.upload(original, "videos/film.bin")
    with partial_of(file, copy):
        try:
            client.download(file, copy)
        except TargetBusy as error:
            print(error)
    client.download(file, copy)
    assert copy.read_bytes() == original.read_bytes()
    assert abs(copy.stat().st_mtime_ns - original.stat().st_mtime_ns) < 1000
    client.delete(file.id)
    assert list(client.files()) == []
Worker(url, token).run()  # without a handler it ends at once
print(os.name)
