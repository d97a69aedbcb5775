"""Which operations a path has. Knows paths and methods, and nothing of who calls.

Starlette's router tries one path after the other, with a layer of its own around each request; this one looks the first
segment up, and leaves the request alone.
"""

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

from starlette.routing import compile_path

from uploader.http.shared.operation import Operation


@dataclass(frozen=True, slots=True)
class Place:
    """A path of the route table, and what may be done there."""

    path: str
    pattern: re.Pattern[str]
    by_method: dict[str, Operation]

    @property
    def allow(self) -> str:
        """The value of `Allow`."""
        return ", ".join(sorted(self.by_method))


class Match(NamedTuple):
    """The place that a path leads to, and what it gives for the parameters there."""

    place: Place
    path_params: dict[str, str]


class Routing:
    """The places of a route table. Each path begins with a segment that is no parameter."""

    def __init__(self, operations: list[Operation]) -> None:
        by_path: dict[str, dict[str, Operation]] = defaultdict(dict)
        for operation in operations:
            by_path[operation.path][operation.method] = operation
            if operation.method == "GET":
                by_path[operation.path]["HEAD"] = operation
        self._by_first_segment: dict[str, list[Place]] = defaultdict(list)
        for path, by_method in sorted(
            by_path.items(), key=lambda place: "{" in place[0]
        ):  # a word goes before a parameter
            self._by_first_segment[_first_segment(path)].append(Place(path, compile_path(path)[0], by_method))

    @property
    def paths(self) -> list[str]:
        """The paths of all places."""
        return [place.path for places in self._by_first_segment.values() for place in places]

    def find(self, path: str) -> Match | None:
        """The place of a request's path; None if it leads nowhere."""
        for place in self._by_first_segment.get(_first_segment(path), ()):
            if match := place.pattern.fullmatch(path):
                return Match(place, match.groupdict())
        return None


def _first_segment(path: str) -> str:
    return path[1:].partition("/")[0]
