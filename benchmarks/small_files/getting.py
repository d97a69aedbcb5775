"""A folder of small files by `uploader get`, each time into a new directory."""

import shutil
from dataclasses import replace
from pathlib import Path

from benchmarks.ingest.places import Places
from benchmarks.report import Row, at_least, at_most
from benchmarks.small_files import folders
from benchmarks.small_files.pairs import Sent, put, run, uploader
from benchmarks.small_files.scale import Scale
from tests.support.process import UPLOADER

_FILES_A_SECOND = 3000.0
_SERVER_MICROSECONDS, _CLIENT_MICROSECONDS = 150.0, 200.0


def getting(places: Places, scale: Scale) -> list[Row]:
    """On the disk, where names and bytes are synced; in memory, where no sync takes time."""
    rows = _rows(", on the disk", places.disk / "disk", scale)
    return [*rows, *_rows(", in memory", places.memory / "memory", scale)] if scale.both_places else rows


def _rows(where: str, directory: Path, scale: Scale) -> list[Row]:
    got: list[Sent] = []
    with uploader(directory / "server") as pair:
        folder = folders.make(directory / "folder", scale.files)
        put(pair, folder, "all")
        into = replace(
            pair, command=lambda target, prefix: [UPLOADER, "get", "--quiet", "--no-empty", prefix, "-o", target]
        )
        for number in range(scale.put_rounds):
            target = directory / f"round-{number}"
            got.append(run(into, target, "all/", scale.files))
            if (there := folders.count(target)) != scale.files:
                raise RuntimeError(f"{there} of {scale.files} files came")
            shutil.rmtree(target)
    what = f"{scale.files:,} files of 4 KiB{where}: `uploader get`"
    server, client = ([seconds * 1e6 / scale.files for seconds in each] for each in _costs(got))
    return [
        at_least(what, _FILES_A_SECOND, [one.rate for one in got], "files/s"),
        at_most("… CPU of a file, server", _SERVER_MICROSECONDS, server, "µs"),
        at_most("… CPU of a file, client", _CLIENT_MICROSECONDS, client, "µs"),
    ]


def _costs(got: list[Sent]) -> tuple[list[float], list[float]]:
    return [one.server_cpu_seconds for one in got], [one.cpu_seconds for one in got]
