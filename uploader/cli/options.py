"""Option types of the command line: sizes, durations, months."""

import re
from datetime import UTC, datetime
from typing import Any

import click

from uploader.units import parse_duration, parse_rate, parse_size


class SizeType(click.ParamType[int]):
    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


class RateType(click.ParamType[int]):
    name = "rate"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            return parse_rate(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)


class DurationType(click.ParamType[float]):
    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        try:
            seconds = parse_duration(value)
        except ValueError as error:
            self.fail(f"{value!r} is {error}", param, ctx)
        return seconds or self.fail("must be greater than 0", param, ctx)


class MonthType(click.ParamType[datetime]):
    name = "YYYY-MM"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        """The begin of the month, in UTC."""
        match = re.fullmatch(r"([0-9]{4})[-/](0[1-9]|1[0-2])", value)
        if not match:
            self.fail(f"{value!r} is not a month such as 2026-11", param, ctx)
        return datetime(int(match[1]), int(match[2]), 1, tzinfo=UTC)


SIZE, RATE, DURATION, MONTH = SizeType(), RateType(), DurationType(), MonthType()
