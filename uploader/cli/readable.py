"""What a person reads: sizes, durations, shares, paths."""

import os

_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def human_bytes(size_bytes: int) -> str:
    """Three digits and a unit."""
    if size_bytes < 1000:
        return f"{size_bytes} B"
    size, unit = _scaled(size_bytes, below=999.5)
    return f"{size:.{0 if size >= 99.95 else 1 if size >= 9.995 else 2}f} {unit}"


def exact_bytes(size_bytes: int) -> str:
    """A size in its unit, and behind it every byte."""
    if size_bytes < 1024:
        return f"{size_bytes} bytes"
    size, unit = _scaled(size_bytes, below=1024)
    return f"{size:.1f} {unit} ({size_bytes} bytes)"


def _scaled(size_bytes: int, *, below: float) -> tuple[float, str]:
    """A size in the smallest unit that keeps it below this, or in the largest unit there is."""
    size, units = size_bytes / 1024, list(_UNITS)
    while size >= below and len(units) > 1:
        size /= 1024
        del units[0]
    return size, units[0]


def human_seconds(seconds: float) -> str:
    """The two largest units that matter."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    for unit, length, smaller, smaller_length in (("d", 86400, "h", 3600), ("h", 3600, "min", 60), ("min", 60, "s", 1)):
        if whole >= length:
            return f"{whole // length} {unit} {whole % length // smaller_length} {smaller}"
    return f"{whole} s"


def percent(part: int, whole: int) -> str:
    """A share in whole percent; a share of nothing is 100 %."""
    return f"{100 * part // whole if whole else 100} %"


def shown_path(path: str | os.PathLike[str]) -> str:
    """A path as text; names that are no UTF-8 are shown as near as can be."""
    return os.fsencode(path).decode("utf-8", "replace")
