"""Finds what a mutant changes: by a function, or a Lua script, and a pattern in it. Not by file and line: code moves, and is
formatted anew, and no mutant has to follow.

A pattern matches token by token, so white space, line breaks, comments, the kind of quotes and a comma before a closing
bracket make no difference.
"""

import ast
import gc
import io
import re
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import NamedTuple

# The text of every source file of a package.
Sources = Mapping[Path, str]

_LUA_TOKEN = re.compile(r"--.*|'[^'\n]*'|\"[^\"\n]*\"|\w+|\S")


@dataclass(frozen=True)
class Edit:
    """Where a pattern occurs exactly once, it becomes `new`, whose further lines are indented as the one it stands in.

    `where`: a function by its name, with its class before it (`Class.name`) where others have the same; or `script.lua`.
    """

    where: str
    pattern: str
    new: str


class _Span(NamedTuple):
    """A token, or a function by its name with the classes and functions that it is in; by offsets."""

    text: str
    start: int
    end: int


def read(package: Path) -> Sources:
    """The sources of a package as they are."""
    return {path: path.read_text() for path in sorted(package.rglob("*")) if path.suffix in (".py", ".lua")}


def edited(sources: Sources, edit: Edit) -> Sources:
    """The sources with an edit made. Raises ValueError unless there is exactly one place for it."""
    path, where = _only(_named(sources, edit.where), edit.where)
    source = sources[path]
    start, end = _match(path, source, where, edit)
    line = source[source.rfind("\n", 0, start) + 1 : start]
    indent = line[: len(line) - len(line.lstrip())]
    new = edit.new.replace("\n", f"\n{indent}")
    return {**sources, path: source[:start] + new + source[end:]}


def parsed(source: str) -> ast.Module:
    """A module's tree, read while no garbage is collected: a task of an earlier test that failed unseen would be logged, its
    traceback parses, too, and CPython 3.11 takes one parsing within another for a fault (SystemError, gh-106905)."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        return ast.parse(source)
    finally:
        if collecting:
            gc.enable()


def _only(places: list[tuple[Path, _Span]], name: str) -> tuple[Path, _Span]:
    if not places:
        raise ValueError(f"nothing is named {name}")
    if len(places) > 1:
        raise ValueError(f"{name} is in {' and '.join(str(path) for path, _ in places)}: name its class, too")
    return places[0]


def _named(sources: Sources, name: str) -> list[tuple[Path, _Span]]:
    if name.endswith(".lua"):
        return [(path, _Span(name, 0, len(source))) for path, source in sources.items() if path.name == name]
    python = ((path, source) for path, source in sources.items() if path.suffix == ".py")
    functions = [(path, function) for path, source in python for function in _functions(source)]
    exactly = [place for place in functions if place[1].text == name]
    return exactly or [place for place in functions if place[1].text.endswith(f".{name}")]


@lru_cache(maxsize=1000)
def _functions(source: str) -> tuple[_Span, ...]:
    starts = _line_starts(source)
    return tuple(
        _Span(name, starts[node.lineno - 1], starts[node.end_lineno or node.lineno])
        for name, node in _defined(parsed(source), "")
    )


def _defined(parent: ast.AST, prefix: str) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for node in ast.iter_child_nodes(parent):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _defined(node, prefix)
            continue
        if not isinstance(node, ast.ClassDef):
            yield prefix + node.name, node
        yield from _defined(node, f"{prefix}{node.name}.")


def _match(path: Path, source: str, where: _Span, edit: Edit) -> tuple[int, int]:
    tokenized = _lua_tokens if path.suffix == ".lua" else _python_tokens
    tokens = [token for token in _telling(tokenized(source)) if where.start <= token.start < where.end]
    wanted = [token.text for token in _telling(tokenized(edit.pattern))]
    texts = [token.text for token in tokens]
    found = [at for at in range(len(texts)) if wanted and texts[at : at + len(wanted)] == wanted]
    if len(found) != 1:
        raise ValueError(f"{edit.where} in {path} has {len(found)} times {edit.pattern!r}")
    return tokens[found[0]].start, tokens[found[0] + len(wanted) - 1].end


def _telling(tokens: Iterable[_Span]) -> list[_Span]:
    """Without what a formatter may choose."""
    end = _Span("", 0, 0)
    alike = [token._replace(text=token.text.replace('"', "'")) for token in tokens]
    return [token for token, after in pairwise([*alike, end]) if token.text != "," or after.text not in (")", "]", "}")]


@lru_cache(maxsize=1000)
def _python_tokens(source: str) -> tuple[_Span, ...]:
    starts = _line_starts(source)
    return tuple(
        _Span(token.string, starts[token.start[0] - 1] + token.start[1], starts[token.end[0] - 1] + token.end[1])
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type != tokenize.COMMENT and token.string.strip()
    )


def _lua_tokens(source: str) -> Iterator[_Span]:
    for token in _LUA_TOKEN.finditer(source):
        if not token[0].startswith("--"):
            yield _Span(token[0], token.start(), token.end())


def _line_starts(source: str) -> list[int]:
    return list(accumulate((len(line) + 1 for line in source.split("\n")), initial=0))
