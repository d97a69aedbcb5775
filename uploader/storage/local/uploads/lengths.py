"""The files of an upload whose length was not known, once it is: its map becomes that of any other upload. Runs in threads.

Until then the map has records for one chunk more than there may ever be, and its header says so. Where the last bytes that
came are a tail, they are a chunk now. A crash at any step leaves a header of before, and whoever comes next begins again.
"""

from uploader.crashpoints import crash_point
from uploader.domain.upload import Upload
from uploader.storage import disk
from uploader.storage.local import formats
from uploader.storage.local.chunkfiles import shape_of, tail_field
from uploader.storage.local.temp import upload_directory


def needs_settling(root: disk.Directory, upload: Upload) -> bool:
    """Whether a map is still that of an upload whose length is not known, but it is. Raises Gone."""
    if not upload.length_known:
        return False
    with upload_directory(root, upload) as directory:
        descriptor = directory.open_to_read("map")
        try:
            header = disk.read(descriptor, formats.MAP_RECORDS_OFFSET, 0)
            return formats.boot_id_of(header, shape_of(upload).unbounded) is not None
        finally:
            disk.close(descriptor)


def settle(root: disk.Directory, upload: Upload) -> None:
    """Give the files the form of an upload of this length. The caller holds all locks, and that of the digests, which are of
    whole chunks: until now the last one was none. Repeatable. Raises Gone."""
    with upload_directory(root, upload) as directory:
        descriptor = directory.open_to_write("map")
        try:
            header = disk.read(descriptor, formats.MAP_RECORDS_OFFSET, 0)
            boot_id = formats.boot_id_of(header, shape_of(upload).unbounded) or ""
            _settle_data(directory, upload.size, durable=not boot_id)
            _settle_map(descriptor, upload, header, boot_id)
        finally:
            disk.close(descriptor)


def _settle_data(directory: disk.Directory, size_bytes: int, *, durable: bool) -> None:
    """`durable`: all that is in it is, so that there is little to write."""
    data = directory.open_to_write("data")
    try:
        disk.resize(data, size_bytes)  # what a killed writer left beyond was never acknowledged
        if durable:
            disk.sync_data(data)
    finally:
        disk.close(data)
    crash_point("length.after_data")


def _settle_map(descriptor: int, upload: Upload, header: bytes, boot_id: str) -> None:
    shape = shape_of(upload)
    disk.resize(descriptor, shape.map_length)
    tail = formats.tail_of(header, shape.unbounded)
    if tail is not None and formats.is_last_chunk(tail, shape):
        record = formats.map_record(tail.checksum)
        disk.write(descriptor, memoryview(record), formats.map_record_offset(tail.number))
    disk.sync_data(descriptor)
    crash_point("length.after_map_record")
    kept = tail_field(header) if formats.tail_of(header, shape) else formats.NO_TAIL
    # The last step, in one write.
    disk.write(descriptor, memoryview(formats.map_header(boot_id, shape, kept)), 0)
    disk.sync_data(descriptor)
    crash_point("length.after_map")
