"""How long a client waits at 100 %."""

from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Row, amount, percentile
from benchmarks.storage.client import Bytes
from benchmarks.storage.hashing import bare_seconds
from benchmarks.storage.scale import Scale, spelled
from benchmarks.storage.uploading import Uploaded, delete, serving, upload, upload_over, upload_with_first_chunk_last

_TARGET_MS = 50.0
_CONNECTIONS = 4


def finishing(directory: Path, scale: Scale) -> list[Row]:
    """From the last byte to 201: in order, over several connections, and with the first chunk last."""
    content = Bytes(scale.chunk_size)
    rows = []
    with serving(directory) as server:

        def in_order(size: int) -> Uploaded:
            return upload(server.port, content, size)

        def over_connections(size: int) -> Uploaded:
            return upload_over(_CONNECTIONS, server.port, scale.chunk_size, size)

        def first_chunk_last(size: int) -> Uploaded:
            return upload_with_first_chunk_last(server.port, content, size)

        def finished_ms(how: Callable[[int], Uploaded], size: int, times: int) -> list[float]:
            measured = []
            for _ in range(times):
                uploaded = how(size)
                delete(server.port, uploaded.file_id)
                measured.append(uploaded.finished_seconds * 1000)
            return measured

        for size, times in scale.in_order:
            measured = finished_ms(in_order, size, times)
            rows.append(_row(f"last byte to 201, {spelled(size)} in order", measured, _TARGET_MS))
        for size, times in scale.out_of_order:
            measured = finished_ms(over_connections, size, times)
            stretch = min(_CONNECTIONS * scale.chunk_size, size)
            figure = f"last byte to 201, {spelled(size)} over {_CONNECTIONS} connections"
            rows.append(_row(figure, measured, _TARGET_MS + _hashing_ms(stretch)))
        size, times = scale.first_chunk_last
        measured = finished_ms(first_chunk_last, size, times)
        figure = f"last byte to 201, {spelled(size)}, first chunk last"
        rows.append(_row(figure, measured, _TARGET_MS + 1.1 * _hashing_ms(size)))
    return rows


def _hashing_ms(size: int) -> float:
    """What is left to do where so many bytes came out of order last."""
    return bare_seconds(size) * 1000


def _row(figure: str, measured_ms: list[float], target_ms: float) -> Row:
    worst = percentile(measured_ms, 0.99)
    spread = f"p50 {amount(percentile(measured_ms, 0.5))} ms, p99 {amount(worst)} ms; n = {len(measured_ms)}"
    missed_by = "" if worst <= target_ms else f"{worst / target_ms:.2f} times the target"
    return Row(figure, f"p99 ≤ {amount(target_ms)} ms", spread, worst <= target_ms, missed_by)
