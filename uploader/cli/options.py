"""Option types of the command line: sizes, durations, months, times."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

from uploader.units import parse_duration, parse_rate, parse_size

T = TypeVar("T")

# Servers refuse bodies that come at less than 1 KiB/s.
_LEAST_RATE_BYTES = 4 << 10


class ParsedType(click.ParamType[T]):
    """What a parser of `uploader.units` takes; what it refuses is bad usage."""

    def __init__(self, name: str, parse: Callable[[str], T]) -> None:
        self.name = name
        self._parse = parse

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> T:
        try:
            return self._parse(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


class DurationType(ParsedType[float]):
    """A duration; none at all is bad usage, too."""

    def __init__(self) -> None:
        super().__init__("duration", parse_duration)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        return super().convert(value, param, ctx) or self.fail("must be greater than 0", param, ctx)


class LimitRateType(ParsedType[int]):
    """Bytes a second that bodies are not refused for. `10M` is 10 MiB, as curl, wget and rclone have it."""

    def __init__(self) -> None:
        super().__init__("rate", parse_rate)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        rate = super().convert(re.sub(r"(?i)(?<=[0-9])([kmg])(?=(/s)?$)", r"\1iB", str(value)), param, ctx)
        return rate if rate >= _LEAST_RATE_BYTES else self.fail("must be at least 4KiB", param, ctx)


class MonthType(click.ParamType[datetime]):
    """A month as `2026-11` or `2026/11`; the value is its begin, in UTC."""

    name = "YYYY-MM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        match = re.fullmatch(r"([0-9]{4})[-/](0[1-9]|1[0-2])", value)
        if not match or match[1] == "0000":
            self.fail(f"{value!r} is not a month such as 2026-11", param, ctx)
        return datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)


class WhenType(click.ParamType[datetime]):
    """A moment, or how long ago it was."""

    name = "when"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return datetime.now(UTC) - timedelta(seconds=parse_duration(value))
        except ValueError:
            pass
        try:
            moment = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is no duration such as 2h, and no time such as 2026-11-22T13:00:00Z", param, ctx)
        return moment.astimezone(UTC)


SIZE, RATE = ParsedType("size", parse_size), ParsedType("rate", parse_rate)
DURATION, MONTH, LIMIT_RATE, WHEN = DurationType(), MonthType(), LimitRateType(), WhenType()
