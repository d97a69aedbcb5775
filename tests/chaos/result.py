"""The result of a round as docs/reliability.md shows it, and what a round of the tests has to show."""

from collections import Counter
from collections.abc import Mapping

from tests.chaos.clients import ANSWER_SECONDS
from tests.chaos.round import Least, Summary
from tests.support.servers import PRIVATE_DATABASES

_NAMES = {"server": "servers", "worker": "workers", "valkey": "Valkey"}
_GATEWAYS = {"juicefs": "JuiceFS' gateway", "ceph": "radosgw"}


def as_table(summary: Summary) -> str:
    """Markdown."""
    names = _NAMES | {"database": PRIVATE_DATABASES[summary.setup.database].product}
    on_s3 = summary.setup.is_on_s3
    place = ""
    if on_s3:
        names |= {"gateway": _GATEWAYS[summary.setup.store]}
        place = f"S3 of {names['gateway']}, "
    kinds = ", ".join(f"{summary.kills.get(kind, 0):,} {name}" for kind, name in names.items())
    counts = Counter(summary.counts)
    rows = {
        f"{summary.seconds:,.0f} s, seed {summary.seed}": "",
        "on": f"{place}{names['database']}, durability `{summary.setup.durability}`, "
        f"chunks of {summary.setup.chunk_size:,} bytes",
        "kills": f"{summary.kills_total:,}: {kinds}",
        "append-only files cut": f"{summary.aof_cuts:,}",
        "FLUSHALL": f"{summary.flushalls:,}",
        "processes stopped for longer than the lease": f"{summary.freezes:,}"
        + (f", of them {summary.gateway_freezes:,} {names['gateway']}" if on_s3 else ""),
        "jumps of a clock": f"{summary.clock_jumps:,}",
        "failovers": "; ".join(f"{count:,} {kind}" for kind, count in summary.failovers.items()) or "none",
        "requests, the longest without an answer": f"{counts['requests']:,}, {summary.longest_answer_seconds:g} s",
        f"of them longer than {ANSWER_SECONDS:g} s": f"{len(summary.late):,}",
        "the longest act, as which a stop may last": f"{summary.longest_act_seconds:g} s",
        "chunks acknowledged": f"{counts['chunks']:,}, of them {counts['duplicates']:,} again, "
        f"{counts['made']:,} by instructions",
        "files finished": f"{counts['files']:,}, every one compared byte for byte",
        "of them in one request, in a batch": f"{counts['whole']:,}, {counts['members']:,}",
        "appends acknowledged, broken off, displaced": f"{counts['appends']:,}, {counts['appends_broken_off']:,}, "
        f"{counts['appends_refused']:,}",
        "of the files by tus alone, beside chunks": f"{counts['streams']:,}, {counts['mixed']:,}",
        "uploads cancelled, lies caught": f"{counts['cancelled']:,}, {counts['lies_caught']:,}",
        "audits": f"{summary.audits:,}, and {summary.audits_missed:,} while the database was away",
        **({"the housekeeping removed": _cleaned(summary.cleaned)} if on_s3 else {}),
        "violations": f"{len(summary.violations) + len(summary.errors):,}",
        "drift": f"{summary.drift_bytes:,} bytes",
    }
    first, *rest = (f"| {name} | {value} |" for name, value in rows.items())
    return "\n".join([first, "|---|---|", *rest])


def _cleaned(figures: Mapping[str, int]) -> str:
    removed = f"{figures.get('uploads', 0):,} uploads without a row, {figures.get('objects', 0):,} objects"
    return f"{removed}; then all {figures.get('kept', 0):,} objects and multipart uploads had one"


def judge(summary: Summary, least: Least) -> None:
    """Nothing was wrong, and enough was done for that to mean something."""
    print(as_table(summary), summary.seed, summary.ended_unasked)
    assert summary.violations == []
    assert summary.errors == []
    assert summary.drift_bytes == 0
    assert summary.kills_total >= least.kills
    assert summary.counts["chunks"] >= least.chunks
    assert summary.counts["made"] >= least.made
    assert summary.counts["appends"] >= least.appends
    assert summary.counts["files"] >= least.files
    assert summary.audits >= least.audits
