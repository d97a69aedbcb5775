"""What is wrong with one upload, by what the database, the disk and Redis say of it."""

from itertools import zip_longest

from uploader.accounting.audit import AuditedUpload
from uploader.domain.chunks import Tail, from_bitmap, received_bytes, to_bitmap
from uploader.domain.upload import Upload
from uploader.service.audit.drift import Drift, Kind
from uploader.storage.base import PresentChunks


def drifts_of_upload(upload: Upload, stored: PresentChunks, snapshot: AuditedUpload) -> list[Drift]:
    """What is wrong with an open upload, by its row, its map, and what Redis holds of it."""
    on_disk = stored.received_bytes
    if upload.flushed_bytes > on_disk or (snapshot.state and upload.flushed_bytes < min(snapshot.flushed, on_disk)):
        expected = min(snapshot.flushed, on_disk) if upload.flushed_bytes < on_disk else on_disk
        flushed = [Drift(Kind.FLUSHED_BYTES, upload.id, expected, upload.flushed_bytes)]
    else:
        flushed = []
    return flushed + _drifts_of_snapshot(upload, stored, snapshot)


def _drifts_of_snapshot(upload: Upload, stored: PresentChunks, snapshot: AuditedUpload) -> list[Drift]:
    present, on_disk = stored.present, stored.received_bytes
    if snapshot.state == "":
        # Nobody has touched it since Redis was lost: right, unless bytes wait to be accounted.
        return [Drift(Kind.RECEIVED, upload.id, on_disk, None)] if upload.flushed_bytes < on_disk else []
    bits = from_bitmap(snapshot.bitmap, len(present))
    state = "merging" if all(bits) and not upload.is_part else "open"
    if snapshot.state not in ("open", "merging"):
        return [Drift(Kind.STATE, upload.id, state, snapshot.state)]
    drifts = []
    in_bits = received_bytes(bits, upload.extent, upload.chunk_size, snapshot.tail)
    if snapshot.received != in_bits:
        drifts.append(Drift(Kind.RECEIVED, upload.id, in_bits, snapshot.received))
    if snapshot.bitmap.rstrip(b"\0") != to_bitmap(present).rstrip(b"\0"):
        drifts.append(Drift(Kind.CHUNKS, upload.id, on_disk, in_bits))
    ends = [_end_of(tail, upload) for tail in (stored.tail, snapshot.tail)]
    if ends[0] != ends[1]:
        drifts.append(Drift(Kind.TAIL, upload.id, *ends))
    if not 0 <= snapshot.flushed <= on_disk:
        drifts.append(Drift(Kind.FLUSHED, upload.id, on_disk, snapshot.flushed))
    if snapshot.state != state:
        drifts.append(Drift(Kind.STATE, upload.id, state, snapshot.state))
    queue = {"open": "flush", "merging": "merge"}[snapshot.state]
    needed = snapshot.state == "merging" or snapshot.received != snapshot.flushed
    if needed and snapshot.queue != queue:
        drifts.append(Drift(Kind.TASK, upload.id, queue, snapshot.queue or None))
    return drifts


def drifts_of_closed(upload_id: str, snapshot: AuditedUpload) -> list[Drift]:
    """What Redis still holds of an upload that has ended."""
    return [Drift(Kind.TASK, upload_id, None, snapshot.queue)] if snapshot.queue else []


def _end_of(tail: Tail | None, upload: Upload) -> int | None:
    """Where the bytes of a tail end."""
    return None if tail is None else tail.number * upload.chunk_size + tail.length


def has_more(snapshot: AuditedUpload, stored: PresentChunks) -> bool:
    """Whether Redis has bits of chunks that are not on the map, or a tail that is not."""
    on_map = to_bitmap(stored.present)
    if any(bits & ~of_map for bits, of_map in zip_longest(snapshot.bitmap, on_map, fillvalue=0)):
        return True
    if snapshot.tail is None or stored.present[snapshot.tail.number : snapshot.tail.number + 1] == b"\1":
        return False
    known = stored.tail
    return known is None or known.number != snapshot.tail.number or known.length < snapshot.tail.length
