"""The answers as a page of HTML that needs nothing else: of each quantity a plot, drawn as SVG, and the figures below."""

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape

from benchmarks.all.questions import QUESTIONS
from benchmarks.report import amount
from benchmarks.tables import Cell, Column, Line, Table

_WIDTH, _ROW, _TOP = 640, 38, 8
# Where bars begin, how long the longest is, and a figure on its right.
_BARS, _LONGEST, _FIGURE = 310, 260, 60
_STYLE = """
:root { color-scheme: light dark; --page: #fff; --text: #1b1f24; --soft: #5c6570; --peer: #aab5c1; --ours: #2463eb;
  --bound: #b93815; --line: #d9dee4; }
@media (prefers-color-scheme: dark) { :root { --page: #14171b; --text: #e7e9ec; --soft: #a0a9b3; --peer: #5d6975;
  --ours: #6fa8ff; --bound: #ff9a5a; --line: #333a42; } }
body { background: var(--page); color: var(--text); font: 15px/1.5 system-ui, sans-serif; margin: 0 auto;
  max-width: 1340px; padding: 1.5rem; }
h1, h2 { line-height: 1.2; } h2 { margin-top: 2.5rem; } p { max-width: 50rem; }
code { font-size: 0.92em; } .soft { color: var(--soft); }
.plots { display: grid; gap: 1rem 2rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; } figcaption { font-weight: 600; } figcaption span { color: var(--soft); font-weight: 400; }
svg { display: block; height: auto; max-width: 42rem; width: 100%; }
svg text { fill: var(--text); font: 13px system-ui, sans-serif; }
svg .does { fill: var(--soft); font-size: 11px; } svg .peer { fill: var(--peer); } svg .ours { fill: var(--ours); }
svg .spread { stroke: var(--text); stroke-width: 1.5; } svg .bound { stroke: var(--bound); stroke-width: 2.5; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; font-size: 13px; margin-top: 1rem; }
th, td { border-bottom: 1px solid var(--line); padding: 0.3rem 0.8rem 0.3rem 0; text-align: left; vertical-align: top; }
"""


def html(facts: Sequence[str], answers: Mapping[str, Table]) -> str:
    """`facts`: paragraphs before all plots."""
    legend = "In plots a red mark is what was to be reached, and a thin line goes from the lowest to the highest."
    parts = [f"<p>{_coded(fact)}</p>" for fact in (*facts, legend)]
    for name, table in answers.items():
        parts += [
            f"<h2>{escape(table.heading)}</h2>",
            f"<p class=soft>{_coded(f'`--only {name}`')}: {escape(QUESTIONS[name].asks)}</p>",
        ]
        parts += ["<div class=plots>", *(_figure(table, column) for column in table.measured), "</div>", _table(table)]
    title = "uploader beside others, on this machine"
    head = f"<meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>"
    body = "\n".join(parts)
    return f"<!doctype html>\n<html lang=en>\n{head}\n<style>{_STYLE}</style>\n<h1>{title}</h1>\n{body}\n</html>\n"


def _figure(table: Table, column: Column) -> str:
    measured = [(line, line.cells[column.name]) for line in table.lines if column.name in line.cells]
    more = "more" if column.more_is_better else "less"
    caption = f"{escape(column.name)} <span>({more} is better)</span>"
    most = max([1e-9, *(max(*cell.values, cell.bound or 0) for _, cell in measured)])
    height = _TOP + _ROW * len(measured)
    bars = "\n".join(_bar(_TOP + _ROW * number, line, cell, most) for number, (line, cell) in enumerate(measured))
    told = ", ".join(f"{_plain(line.name)} {amount(cell.median)}" for line, cell in measured)
    opening = f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(f"{column.name}: {told}")}">'
    return f"<figure><figcaption>{caption}</figcaption>\n{opening}\n{bars}\n</svg>\n</figure>"


def _bar(top: int, line: Line, cell: Cell, most: float) -> str:
    """Its name and what it does on the left; the median as a bar, with the lowest and the highest, and the bound."""

    def at(value: float) -> float:
        return round(_BARS + _LONGEST * max(0.0, value) / most, 1)

    middle, end = top + 11, at(cell.median)
    kind = "ours" if line.is_ours else "peer"
    parts = [
        f'<text x="0" y="{top + 13}">{escape(_plain(line.name))}</text>',
        f'<text class="does" x="0" y="{top + 27}">{escape(line.does)}</text>',
        f'<rect class="{kind}" x="{_BARS}" y="{top + 2}" width="{end - _BARS:.1f}" height="18" rx="2"/>',
    ]
    if len(cell.values) > 1:
        lowest, highest = at(min(cell.values)), at(max(cell.values))
        parts.append(f'<line class="spread" x1="{lowest}" x2="{highest}" y1="{middle}" y2="{middle}"/>')
    if cell.bound is not None:
        place = at(cell.bound)
        parts.append(f'<line class="bound" x1="{place}" x2="{place}" y1="{top - 1}" y2="{top + 23}"/>')
    after = max(end, at(max(cell.values)))
    if cell.bound is not None and after - 3 < at(cell.bound) < after + _FIGURE:
        after = at(cell.bound)
    parts.append(f'<text x="{after + 6}" y="{top + 15}">{amount(cell.median)}</text>')
    return "\n".join(parts)


def _table(table: Table) -> str:
    head, *rows = (_cells(row) for row in _rows(table))
    body = "\n".join([head.replace("td>", "th>"), *rows])
    return f"<div class=scroll><table>\n{body}\n</table></div>"


def _rows(table: Table) -> Iterator[list[str]]:
    """As in Markdown, without the line between head and body."""
    for number, row in enumerate(table.markdown(spread=True).splitlines()):
        if number != 1:
            yield [cell.strip() for cell in row.strip("|").split("|")]


def _cells(row: Sequence[str]) -> str:
    return f"<tr>{''.join(f'<td>{_coded(cell)}</td>' for cell in row)}</tr>"


def _coded(text: str) -> str:
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _plain(text: str) -> str:
    return text.replace("`", "")
