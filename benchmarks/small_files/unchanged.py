"""A folder that is there already, put again: what it costs to find that out."""

import re
from contextlib import ExitStack

from benchmarks.ingest.installing import NotAvailable
from benchmarks.ingest.ours import Mode, ours
from benchmarks.ingest.places import Places
from benchmarks.ingest.rounds import reason
from benchmarks.report import Row, at_most, compared
from benchmarks.small_files import folders
from benchmarks.small_files.pairs import COPYPARTY, UPLOADER_PUT, copyparty, of, put, run
from benchmarks.small_files.scale import Scale
from benchmarks.storage.client import Connection

_MOST_SECONDS, _MOST_REQUESTS = 5.0, 30.0
_FOLDER = "unchanged"
_REQUESTS = re.compile(r"^uploader_http_requests_total\{(.*)\} (\S+)$", re.MULTILINE)
# What the benchmark itself asks.
_OWN_ROUTES = ("/metrics", "/readyz", "/me/usage")


def unchanged(places: Places, scale: Scale) -> list[Row]:
    """On the disk, in turn with the one peer whose client can do it, too."""
    what = f"{scale.unchanged:,} unchanged files"
    folder = folders.make(places.disk / "folder", scale.unchanged)
    mine, theirs, requests = [], [], []
    left_out = ""
    with ExitStack() as stack:
        server = stack.enter_context(ours(places.disk / "ours", Mode(), users=1, METRICS="open"))
        pair = of(server)
        put(pair, folder, _FOLDER)
        if scale.peers:
            try:
                peer = stack.enter_context(copyparty(places.disk / "copyparty"))
                put(peer, folder, _FOLDER)
            except (NotAvailable, RuntimeError, OSError) as error:
                left_out = reason(error)
        for _ in range(scale.unchanged_rounds):
            before = _requests(server.port)
            mine.append(run(pair, folder, _FOLDER, scale.unchanged))
            requests.append(_requests(server.port) - before)
            if scale.peers and not left_out:
                theirs.append(run(peer, folder, _FOLDER, scale.unchanged))
        if pair.stored() != scale.unchanged:
            raise RuntimeError(f"{pair.stored()} files where {scale.unchanged} were put")
    rows = [
        at_most(f"{what}: {UPLOADER_PUT}", _MOST_SECONDS, [one.seconds for one in mine], "s", mine[-1].costs()),
        at_most(f"{what}: requests of {UPLOADER_PUT}", _MOST_REQUESTS, requests, "requests"),
    ]
    if theirs:
        seconds = [one.seconds for one in theirs]
        return [*rows, compared(f"{what}: {COPYPARTY}", seconds, "s", "by size and time, without digests")]
    return [*rows, Row(f"{what}: {COPYPARTY}", "–", f"not available: {left_out}")] if scale.peers else rows


def _requests(port: int) -> float:
    """How many requests the server has counted, those of the benchmark left out."""
    with Connection(port) as connection:
        metrics = connection.expect({200}, "GET", "/metrics").body.decode()
    found = _REQUESTS.findall(metrics)
    return sum(float(count) for labels, count in found if not any(f'route="{own}"' in labels for own in _OWN_ROUTES))
