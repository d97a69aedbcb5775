"""The types of columns: how a value is stored, and what one is read as that was never stored."""

from collections.abc import Callable
from datetime import UTC, date, datetime
from typing import Any

from sqlalchemy import VARBINARY, BigInteger, Date, DateTime, Dialect, LargeBinary, TypeDecorator
from sqlalchemy.dialects import sqlite
from sqlalchemy.dialects.mysql import DATETIME
from sqlalchemy.types import TypeEngine

_NO_TEXT = "\ufffd"
_NO_MOMENT = datetime(1970, 1, 1)  # noqa: DTZ001 (the databases keep no zone)


class Bytewise(TypeDecorator[str]):
    """Text that is compared byte by byte: UTF-8 in a VARBINARY of `length` bytes."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        length = self.impl.length
        return dialect.type_descriptor(LargeBinary() if dialect.name == "sqlite" else VARBINARY(length))

    def process_bind_param(self, value: str | None, dialect: Dialect) -> bytes | None:
        return None if value is None else value.encode()

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        if value is None:
            return None
        if not isinstance(value, (bytes, bytearray)):
            return _NO_TEXT
        return value.decode(errors="replace")


class PathWord(Bytewise):
    """What paths are made of: a NUL, which a damaged row may have, is none of a path."""

    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> str | None:
        word = super().process_result_value(value, dialect)
        return word and word.replace("\0", _NO_TEXT)


class _SqliteOctets(LargeBinary):
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        return lambda value: value if value is None or isinstance(value, bytes) else b""


class Octets(TypeDecorator[bytes]):
    """Bytes that are no text."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(_SqliteOctets() if dialect.name == "sqlite" else LargeBinary())


class _SqliteDateTime(sqlite.DATETIME):
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        return _or_else(super().result_processor(dialect, coltype), _NO_MOMENT)


class _SqliteDate(sqlite.DATE):
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any] | None:
        return _or_else(super().result_processor(dialect, coltype), _NO_MOMENT.date())


def _or_else(parse: Callable[[Any], Any] | None, fallback: date) -> Callable[[Any], Any]:
    """Parse a value of a column; the fallback where it can't be."""
    assert parse is not None

    def process(value: Any) -> Any:
        try:
            return parse(value)
        except (TypeError, ValueError):
            return fallback

    return process


class UtcDateTime(TypeDecorator[datetime]):
    """A moment in UTC, to the microsecond; the databases keep no zone, this type gives it back."""

    impl = DateTime
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(DATETIME(fsp=6) if dialect.name != "sqlite" else _SqliteDateTime())  # type: ignore[no-untyped-call]

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.replace(tzinfo=UTC)


class UtcDay(TypeDecorator[date]):
    """A day in UTC."""

    impl = Date
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        return dialect.type_descriptor(Date() if dialect.name != "sqlite" else _SqliteDate())  # type: ignore[no-untyped-call]


class Integer64(TypeDecorator[int]):
    """A whole number, and a sum of such."""

    impl = BigInteger
    cache_ok = True

    def process_result_value(self, value: Any, dialect: Dialect) -> int | None:
        if value is None or type(value) is int:
            return value
        try:
            return int(value)
        except (TypeError, ValueError, OverflowError):
            return 0
