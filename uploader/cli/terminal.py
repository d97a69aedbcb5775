"""Reads and prints for both halves of the command line: sizes, durations and times as options and for a person, and a line
on standard error with an exit code for what can't go on."""

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, TypeVar

import click

from uploader.units import parse_duration, parse_rate, parse_size

# What both halves of the command line exit with; what a failure exits with is each half's own.
EXIT_OK = 0
EXIT_USAGE = 2  # as click has it
EXIT_CONFIGURATION = 2

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")

T = TypeVar("T")

# Servers refuse bodies that come at less than 1 KiB/s.
_LEAST_RATE_BYTES = 4 << 10


def fail(message: str, code: int) -> NoReturn:
    """Say what is wrong and exit with this code."""
    for line in message.splitlines():
        click.echo(f"uploader: {line}", err=True)
    sys.exit(code)


def human_bytes(size_bytes: int) -> str:
    """Three digits and a unit."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size, unit = _scaled(size_bytes, below=999.5)
    return f"{size:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f} {unit}"


def exact_bytes(size_bytes: int) -> str:
    """Return a size in its unit, and behind it every byte."""
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    size, unit = _scaled(size_bytes, below=1024)
    return f"{size:.1f} {unit} ({size_bytes} bytes)"


def _scaled(size_bytes: int, *, below: float) -> tuple[float, str]:
    """Return a size in the smallest unit that keeps it below this, or in the largest unit there is."""
    size, units = size_bytes / 1024, list(_UNITS)
    while size >= below and len(units) > 1:
        size /= 1024
        del units[0]
    return size, units[0]


def human_seconds(seconds: float) -> str:
    """Return the two largest units that matter."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, smaller, smaller_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller_length} {smaller}"
    return f"{whole} s"


def percent(part: int, whole: int) -> str:
    """Write a share in whole percent; a share of nothing is 100 %."""
    return f"{100 * part // whole if whole else 100} %"


def shown_path(path: str | os.PathLike[str]) -> str:
    """Return a path as text; names that are no UTF-8 are shown as near as can be."""
    return os.fsencode(path).decode("utf-8", "replace")


class ParsedType(click.ParamType[T]):
    """An option that a parser reads; its ValueError is bad usage."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


def _parse_some_duration(text: str) -> float:
    return parse_duration(text) or _refuse("must be greater than 0")


def _parse_limit_rate(text: str) -> int:
    """Bytes a second that bodies are not refused for. `10M` is 10 MiB, as curl, wget and rclone have it."""
    rate = parse_rate(re.sub(r"(?i)(?<=[0-9])([kmg])(?=(/s)?$)", r"\1iB", text))
    return rate if rate >= _LEAST_RATE_BYTES else _refuse("must be at least 4KiB")


def _refuse(why: str) -> NoReturn:
    raise click.BadParameter(why)


def _parse_month(text: str) -> datetime:
    """Return the begin, in UTC, of a month as `2026-11` or `2026/11`."""
    match = re.fullmatch(r"([0-9]{4})[-/](0[1-9]|1[0-2])", text)
    if not match or match[1] == "0000":
        raise ValueError("not a month such as 2026-11")
    return datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)


def _parse_when(text: str) -> datetime:
    """Parse a moment, or how long ago it was."""
    with suppress(ValueError):
        return datetime.now(UTC) - timedelta(seconds=parse_duration(text))
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError("not a duration such as 2h or a time such as 2026-11-22T13:00:00Z") from None
    return moment.astimezone(UTC)


SIZE, RATE = ParsedType("size", parse_size), ParsedType("rate", parse_rate)
DURATION, LIMIT_RATE = ParsedType("duration", _parse_some_duration), ParsedType("rate", _parse_limit_rate)
MONTH, WHEN = ParsedType("YYYY-MM", _parse_month), ParsedType("when", _parse_when)
