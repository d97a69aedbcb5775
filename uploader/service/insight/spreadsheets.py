"""CSV for people, who will open it in a spreadsheet: there a cell that begins like a formula is run, not shown."""

import csv
import io
import json
from collections.abc import Iterable, Sequence

# The ASCII ones, and their full-width forms, which some spreadsheets take for them.
_FORMULAS = frozenset("=+-@\t\r＝＋－＠")


def csv_lines(rows: Iterable[Sequence[object]]) -> str:
    """Rows as lines of CSV. Text that would be run as a formula is put behind an apostrophe; several facts in
    one cell are JSON."""
    text = io.StringIO()
    csv.writer(text).writerows([_cell(value) for value in row] for row in rows)
    return text.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    return f"'{value}" if isinstance(value, str) and value[:1] in _FORMULAS else value
