"""The result of a round as docs/reliability.md shows it."""

from tests.flips.flipping import LIVE, STOPPED
from tests.flips.round import Summary

_PLACES = {
    "map": "a map",
    "digest": "a digest file",
    "data": "the data of an open upload",
    "blob": "a blob",
    "sqlite": "a row of SQLite",
    "aof": "the append-only file",
}


def as_table(summary: Summary) -> str:
    """Markdown."""
    rows = {f"{len(summary.flips):,} flips, seed {summary.seed}": ""}
    for kind in (*LIVE, *STOPPED):
        outcomes = {outcome: count for (of, outcome), count in sorted(summary.outcomes.items()) if of == kind}
        shown = ", ".join(f"{count:,} {outcome}" for outcome, count in outcomes.items())
        rows[_PLACES[kind]] = f"{sum(outcomes.values()):,}: {shown}"
    counts = {name: summary.counts.get(name, 0) for name in ("chunks", "files", "downloads")}
    rows["chunks acknowledged"] = f"{counts['chunks']:,}"
    rows["files finished, downloads"] = f"{counts['files']:,}, {counts['downloads']:,}"
    rows["wrong bytes served after a scrub"] = f"{len(summary.wrong_bytes):,}"
    rows["harm to users that were not hit"] = f"{len(summary.harmed):,}"
    rows["cases that nothing named"] = f"{len(summary.unnamed):,}"
    rows["plausible values that nothing repeats"] = f"{len(summary.not_tellable):,}"
    rows["commands and starts that failed with a trace"] = f"{len(summary.failed):,}"
    first, *rest = (f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join([first, "|---|---|", *rest])
