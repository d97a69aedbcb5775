"""A folder of small files by the command of each server's own client."""

import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from subprocess import SubprocessError

from benchmarks.ingest.installing import NotAvailable
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import reason
from benchmarks.report import Row, at_least, compared
from benchmarks.small_files import folders
from benchmarks.small_files.pairs import COPYPARTY, TUS, UPLOADER_PUT, Pair, Sent, Start, copyparty, put, tus, uploader
from benchmarks.small_files.scale import Scale

_STARTS: Mapping[str, Start] = {UPLOADER_PUT: uploader, TUS: tus, COPYPARTY: copyparty}
_FILES_A_SECOND = 1000.0
_TARGETS = {TUS: 5.0, COPYPARTY: 1.0}


def putting(places: Places, scale: Scale) -> list[Row]:
    """On the disk, where the targets are; in memory, where no sync takes time."""
    rows = _rows(", on the disk", places.disk / "disk", scale, _TARGETS, _FILES_A_SECOND)
    return [*rows, *_rows(", in memory", places.memory / "memory", scale, {}, None)] if scale.both_places else rows


def _rows(
    where: str, directory: Path, scale: Scale, times: Mapping[str, float], files_a_second: float | None
) -> list[Row]:
    starts = _STARTS if scale.peers else {UPLOADER_PUT: uploader}
    what = f"{scale.files:,} files of 4 KiB{where}"
    sent, problems = _interleaved(directory, scale, starts)
    rows = []
    for name, rounds in sent.items():
        rates = [one.rate for one in rounds]
        if name in problems:
            rows.append(Row(f"{what}: {name}", "–", f"not available: {problems[name]}"))
        elif name == UPLOADER_PUT and files_a_second:
            rows.append(at_least(f"{what}: {name}", files_a_second, rates, "files/s", rounds[-1].costs()))
        else:
            rows.append(compared(f"{what}: {name}", rates, "files/s", rounds[-1].costs()))
    for name, target in times.items():
        if ratios := [
            one.rate / other.rate for one, other in zip(sent[UPLOADER_PUT], sent.get(name, ()), strict=False)
        ]:
            rows.append(at_least(f"{what}: {UPLOADER_PUT}, to {name}", target, ratios, "times"))
    return rows


def _interleaved(
    directory: Path, scale: Scale, starts: Mapping[str, Start]
) -> tuple[dict[str, list[Sent]], dict[str, str]]:
    """In each round a folder of new content, put by all in turn; and why some did not take part, or not to the end."""
    sent: dict[str, list[Sent]] = {name: [] for name in starts}
    problems: dict[str, str] = {}
    with ExitStack() as stack:
        pairs: dict[str, Pair] = {}
        for number, (name, start) in enumerate(starts.items()):
            try:
                pairs[name] = stack.enter_context(start(directory / str(number)))
            except (NotAvailable, RuntimeError, OSError, AssertionError) as error:
                problems[name] = reason(error)
        for number in range(scale.put_rounds):
            folder = folders.make(directory / f"folder-{number}", scale.files)
            for name, pair in pairs.items():
                if name in problems:
                    continue
                try:
                    sent[name].append(put(pair, folder, f"round-{number}"))
                except (RuntimeError, OSError, SubprocessError) as error:
                    problems[name] = reason(error)
            shutil.rmtree(folder)
    return sent, problems
