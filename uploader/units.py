"""Parsers and formats for values in settings and on the command line. Each parser raises ValueError with the expected
form."""

import ipaddress
import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, tzinfo
from pathlib import Path
from typing import Any

_DECIMAL = {f"{letter}B": 1000**power for power, letter in enumerate("KMGTP", 1)}
_BINARY = {f"{letter}iB": 1024**power for power, letter in enumerate("KMGTP", 1)}
# A letter alone is binary, as in curl, wget and rclone.
_UNITS = {"": 1, "B": 1} | {letter: 1024**power for power, letter in enumerate("KMGTP", 1)}
_UNITS |= {unit.upper(): factor for unit, factor in (_DECIMAL | _BINARY).items()}
_LARGEST_FIRST = sorted((_DECIMAL | _BINARY).items(), key=lambda unit: -unit[1])
_MOST_EXACT = 10_000
_DURATIONS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_MAX_SIZE_BYTES = 2**63 - 1
_MAX_DURATION_SECONDS = 36500 * 86400.0


def parse_size(text: str) -> int:
    """Return bytes from `123`, `64MiB`, `10 GiB`, `1.5GB` (decimal) or `1G` (binary). Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)", text.strip())
    if not match or match[2].upper() not in _UNITS:
        raise ValueError("not a size such as 1048576, 64MiB or 10GiB")
    total = (int(match[1]) if "." not in match[1] else float(match[1])) * _UNITS[match[2].upper()]
    if total > _MAX_SIZE_BYTES:
        raise ValueError("larger than 2^63-1 bytes")
    return int(total)


def parse_rate(text: str) -> int:
    """Return bytes a second from a size with or without `/s`. Raises ValueError."""
    return parse_size(text.strip().removesuffix("/s"))


def format_size(size_bytes: int) -> str:
    """Return the exact size in the largest unit, as `parse_size` reads it."""
    for unit, factor in _LARGEST_FIRST:
        if size_bytes and size_bytes % factor == 0:
            return f"{size_bytes // factor}{unit}"
    return str(size_bytes)


def human_bytes(size_bytes: int) -> str:
    """Return a size for display. It is exact if the number is short (binary units also with one decimal), else in
    binary units with one decimal."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    for unit, factor in _LARGEST_FIRST:
        tenths, rest = divmod(10 * size_bytes, factor)
        is_short = not rest and 10 <= tenths < 10 * _MOST_EXACT
        if is_short and (tenths % 10 == 0 or unit in _BINARY):
            return f"{tenths / 10:g} {unit}"
    unit, factor = next(each for each in _BINARY.items() if size_bytes / each[1] < 1023.95 or each[0] == "PiB")
    return f"{size_bytes / factor:.1f} {unit}"


def parse_duration(text: str) -> float:
    """Return seconds from `5`, `5s`, `500ms`, `10m`, `12h` or `7d`. Raises ValueError."""
    match = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d|)", text.strip())
    if not match:
        raise ValueError("not a duration such as 500ms, 5s, 10m, 12h or 7d")
    seconds = float(match[1]) * _DURATIONS[match[2]]
    if seconds > _MAX_DURATION_SECONDS:
        raise ValueError("longer than 36500d")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a short exact duration, as `parse_duration` reads it."""
    for unit in ("d", "h"):
        if seconds and seconds % _DURATIONS[unit] == 0:
            return f"{seconds / _DURATIONS[unit]:.0f}{unit}"
    from decimal import Decimal  # here, because most commands never print a duration

    return f"{Decimal(str(seconds)):f}".removesuffix(".0") + "s"


def positive(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    def parsed(text: str) -> Any:
        value = parse(text)
        if value <= 0:
            raise ValueError("must be greater than 0")
        return value

    return parsed


def integer(minimum: int, maximum: int) -> Callable[[str], int]:
    def parsed(text: str) -> int:
        if not re.fullmatch(r"[0-9]{1,12}", text) or not minimum <= int(text) <= maximum:
            raise ValueError(f"not a whole number from {minimum} to {maximum}")
        return int(text)

    return parsed


def format_ago(age: timedelta) -> str:
    """Format an age in its largest unit."""
    seconds = max(0, round(age.total_seconds()))
    unit = next((unit for unit in (86400, 3600, 60) if seconds >= unit), 1)
    return f"{format_duration(seconds // unit * unit)} ago"


_LEAP_SECOND = re.compile(r"(.*[0-9]{2}:[0-9]{2}):60(.*)", re.DOTALL)
_RFC_3339 = re.compile(
    r"[0-9]{4}-[0-9]{2}-[0-9]{2}[Tt ][0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{2}:[0-9]{2})"
)


def parse_moment(text: str, zone: tzinfo | None = UTC) -> datetime:
    """Return an ISO 8601 time in UTC. `zone`: for a time without an offset; None: the local zone. A leap second
    (23:59:60 UTC) counts as the next second. Raises ValueError."""
    leap = _LEAP_SECOND.fullmatch(text)
    try:
        moment = datetime.fromisoformat((f"{leap[1]}:59{leap[2]}" if leap else text).upper())
        moment = moment.replace(tzinfo=moment.tzinfo or zone).astimezone(UTC)
        if leap is None:
            return moment
        if (moment.hour, moment.minute) != (23, 59):
            raise ValueError("second must be in 0..59")
        return moment + timedelta(seconds=1)
    except OverflowError as error:
        raise ValueError("out of range") from error


def parse_rfc_3339(text: str) -> datetime:
    """Return an RFC 3339 time in UTC, which has an offset. Raises ValueError."""
    if not _RFC_3339.fullmatch(text):
        raise ValueError("not in the form of RFC 3339")
    return parse_moment(text)


def one_of(*words: str) -> Callable[[str], str]:
    def parsed(text: str) -> str:
        if text not in words:
            raise ValueError(f"not one of {', '.join(words)}")
        return text

    return parsed


def boolean(text: str) -> bool:
    return one_of("true", "false")(text) == "true"


def text_of(text: str) -> str:
    if not text:
        raise ValueError("must not be empty")
    return text


def path_of(text: str) -> Path:
    return Path(text_of(text))


def split_host_and_port(text: str) -> tuple[str, int]:
    """Split `127.0.0.1:8001` or `[::1]:8001`. Raises ValueError."""
    found = re.fullmatch(r"(?:\[([0-9a-fA-F:.]+)\]|([^:\[\]/\s]+)):([0-9]{1,5})", text)
    if found is None or int(found[3]) > 0xFFFF:
        raise ValueError("not an address and a port such as 127.0.0.1:8001 or [::1]:8001")
    return found[1] or found[2], int(found[3])


def mask_password(url: str) -> str:
    """Mask the password of a URL, up to the last `@`, because a password may contain one. Masking too much does no
    harm."""
    masked = re.sub(r"(://[^:]*):.*@", r"\1:***@", url, flags=re.DOTALL)
    return re.sub(r"([?&](?:sentinel_)?pass(?:word|wd)?=)[^&]*", r"\1***", masked, flags=re.IGNORECASE)


def list_of(parse: Callable[[str], str]) -> Callable[[str], tuple[str, ...]]:
    def parsed(text: str) -> tuple[str, ...]:
        return tuple(parse(part.strip()) for part in text.split(","))

    return parsed


def network(text: str) -> str:
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ValueError("not an address or network such as 127.0.0.1 or 10.0.0.0/8") from error


def origin(text: str) -> str:
    if text != "*" and not re.fullmatch(
        r"https?://[a-z0-9.-]+(:[0-9]{1,5})?|https?://\[[0-9a-f:]+\](:[0-9]{1,5})?", text
    ):
        raise ValueError("not an origin such as https://app.example.com, nor *")
    return text


def public_url(text: str) -> str:
    """Return the URL without a slash at its end. Raises ValueError."""
    found = re.fullmatch(r"(https?://[^/?#@\s]+)((?:/[A-Za-z0-9._~-]+)*)/?", text)
    path = found[2] if found else ""
    if found is None or {".", ".."} & set(path.split("/")):
        raise ValueError("not a URL such as https://example.com/store")
    return origin(found[1].lower()) + path


def header_name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", text) or text.lower() in ("authorization", "host"):
        raise ValueError("not the name of a header such as X-Remote-User")
    return text


def duration_within(minimum_seconds: float, maximum_seconds: float) -> Callable[[str], float]:
    def parsed(text: str) -> float:
        seconds = parse_duration(text)
        if not minimum_seconds <= seconds <= maximum_seconds:
            raise ValueError(f"not from {format_duration(minimum_seconds)} to {format_duration(maximum_seconds)}")
        return seconds

    return parsed
