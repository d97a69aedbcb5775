"""Patterns of names, as shells have them: `*`, `?`, `[…]` within one part of a name, `**` for any number of parts. Pure."""

import re
from collections.abc import Callable, Sequence
from fnmatch import translate

_MAGIC = re.compile(r"[*?[]")

# One part of a name, or with None any number of them.
_Part = Callable[[str], object] | None


def is_pattern(word: str) -> bool:
    return _MAGIC.search(word) is not None


class Pattern:
    """A pattern of whole names, or of folders."""

    def __init__(self, word: str) -> None:
        fixed = _MAGIC.split(word, maxsplit=1)[0]
        # What all names begin with that it matches, and the folder that they all are in.
        self.prefix = fixed
        self.base = fixed[: fixed.rfind("/") + 1]
        self._folders_only = word.endswith("/")
        self._parts = [_part(text) for text in word.rstrip("/").split("/")]

    def match(self, name: str) -> str | None:
        """What of a name it matches: all of it, or a folder that the file is in, with a slash at its end."""
        parts = name.split("/")
        if not self._folders_only and _fits(self._parts, parts):
            return name
        for depth in range(1, len(parts)):
            if _fits(self._parts, parts[:depth]):
                return "/".join(parts[:depth]) + "/"
        return None


def _part(text: str) -> _Part:
    return None if text == "**" else re.compile(translate(text)).match


def _fits(pattern: Sequence[_Part], parts: Sequence[str]) -> bool:
    if not pattern:
        return not parts
    first, *rest = pattern
    if first is None:
        return any(_fits(rest, parts[count:]) for count in range(len(parts) + 1))
    return bool(parts) and first(parts[0]) is not None and _fits(rest, parts[1:])
