"""Where the rows of a SQLite file lie, so that a byte of one can flip (https://www.sqlite.org/fileformat2.html)."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_INTERIOR, _LEAF = 0x05, 0x0D
_FILE_HEADER = 100


@dataclass(frozen=True)
class RowPlace:
    """The record of one row: its header and its values."""

    table: str
    rowid: int
    offset: int
    length: int


def table_names(path: Path) -> dict[str, int]:
    """The tables and the pages at which they begin."""
    with closing(sqlite3.connect(path)) as connection:
        return dict(connection.execute("SELECT name, rootpage FROM sqlite_master WHERE type = 'table'"))


def row_places(path: Path, table: str) -> list[RowPlace]:
    """The rows of a table; of a row that does not fit into a page, what is on the first."""
    content = path.read_bytes()
    page_size = int.from_bytes(content[16:18], "big")
    page_size = 1 << 16 if page_size == 1 else page_size
    root = table_names(path)[table]
    return [RowPlace(table, *found) for found in _leaves(content, page_size, root)]


def row(path: Path, place: RowPlace) -> dict[str, Any]:
    """The values of a row; what SQLite says, if it can't read them."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        connection.text_factory = bytes
        try:
            found = connection.execute(f"SELECT * FROM {place.table} WHERE rowid = ?", (place.rowid,)).fetchone()
        except sqlite3.Error as error:
            return {"error": str(error)}
    return dict(found) if found is not None else {}


def _leaves(content: bytes, page_size: int, number: int) -> Iterator[tuple[int, int, int]]:
    start = (number - 1) * page_size
    header = start + (_FILE_HEADER if number == 1 else 0)
    kind = content[header]
    pointers = header + (12 if kind == _INTERIOR else 8)
    cells = [
        start + int.from_bytes(content[pointers + 2 * index : pointers + 2 * index + 2], "big")
        for index in range(int.from_bytes(content[header + 3 : header + 5], "big"))
    ]
    if kind == _INTERIOR:
        children = [*cells, header + 8]
        for child in children:
            yield from _leaves(content, page_size, int.from_bytes(content[child : child + 4], "big"))
        return
    assert kind == _LEAF, f"page {number} is no page of a table"
    for cell in cells:
        length, after_length = _varint(content, cell)
        rowid, payload = _varint(content, after_length)
        yield rowid, payload, min(length, start + page_size - payload)


def _varint(content: bytes, offset: int) -> tuple[int, int]:
    """A number, and the offset after it."""
    value = 0
    for index in range(8):
        byte = content[offset + index]
        value = value << 7 | byte & 0x7F
        if byte < 0x80:
            return value, offset + index + 1
    return value << 8 | content[offset + 8], offset + 9
