"""Which files are taken, by what was excluded, included and listed. Pure, but for reading the list.

A pattern is as in a .gitignore: with a `/` before its end it is of a whole path, without one of a name in any folder; a
`/` at its end says that folders are meant. What matches a folder matches all that is in it. The first rule that matches
decides; what none matches is taken, unless all rules are to include something. Each file is decided by itself.
"""

import os
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from typing import IO

from uploader.cli.client.naming.patterns import Pattern


class Rule:
    """One `--exclude` or `--include`."""

    def __init__(self, pattern: str, *, includes: bool) -> None:
        """Raises ValueError."""
        text = unicodedata.normalize("NFC", pattern)
        if not text.strip("/"):
            raise ValueError(f"{pattern!r} is a pattern that matches nothing")
        self.includes = includes
        self._pattern = Pattern(text.lstrip("/") if "/" in text.rstrip("/") else f"**/{text}")

    def matches(self, path: str) -> bool:
        return self._pattern.match(path) is not None

    def matches_folder(self, path: str) -> bool:
        return (self._pattern.match(f"{path}/\0") or "").endswith("/")  # no file has that name


class Filters:
    """All rules in their order, and the files and folders that a list names, if there is one."""

    def __init__(self, rules: Sequence[Rule] = (), listed: Iterable[str] | None = None) -> None:
        self._rules = rules
        self._otherwise = not rules or not all(rule.includes for rule in rules)
        self.listed = None if listed is None else {unicodedata.normalize("NFC", path) for path in listed}
        self._towards = {folder for path in self.listed or () for folder in folders_of(path)}

    def __bool__(self) -> bool:
        """Whether they may leave out anything."""
        return bool(self._rules) or self.listed is not None

    def only(self, listed: Iterable[str]) -> "Filters":
        return Filters(self._rules, listed)

    def take(self, path: str) -> bool:
        """A file, by its relative path."""
        path = unicodedata.normalize("NFC", path)
        if not self._is_listed(path):
            return False
        return next((rule.includes for rule in self._rules if rule.matches(path)), self._otherwise)

    def leave_out(self, path: str) -> bool:
        """A file; or a folder, by a slash at its end, in which there can be none that is taken."""
        if not path.endswith("/"):
            return not self.take(path)
        folder = unicodedata.normalize("NFC", path[:-1])
        if not self._is_listed(folder) and folder not in self._towards:
            return True
        for rule in self._rules:
            if rule.includes:
                return False  # perhaps something in it
            if rule.matches_folder(folder):
                return True
        return False

    def _is_listed(self, path: str) -> bool:
        if self.listed is None or path in self.listed:
            return True
        return any(folder in self.listed for folder in folders_of(path))


EVERYTHING = Filters()


def folders_of(path: str) -> Iterator[str]:
    """The folders that it lies in, the nearest one first."""
    while "/" in path:
        path = path.rpartition("/")[0]
        yield path


def listed_in(opened: IO[bytes]) -> list[str]:
    """The relative paths of a list, one a line, each once, in order. Raises ValueError."""
    listed: dict[str, None] = {}
    for number, line in enumerate(opened.read().split(b"\n"), 1):
        path = os.fsdecode(line.removesuffix(b"\r"))
        parts = [part for part in path.split("/") if part not in ("", ".")]
        if path.startswith("/") or ".." in parts:
            raise ValueError(f"line {number} is no path below a folder: {path!r}")
        if parts:
            listed["/".join(parts)] = None
    return list(listed)
