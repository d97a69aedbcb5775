"""The whole store of a process, and what every store does alike."""

import hashlib
import os
import threading
from abc import abstractmethod
from contextlib import closing, suppress

from uploader.cores import run_anywhere
from uploader.storage import disk
from uploader.storage.base import BlobBytes, Digests, Found, Gone, Housekeeping, Pace, Stopping, UploadBytes
from uploader.storage.marks import InstallationMark
from uploader.storage.signatures import Signatures
from uploader.tasks import Pool, give_way, give_way_anywhere, give_way_to_all


class Threads:
    """What is short shares a core with the event loop (`uploader/cores.py`); what takes long, by the number of bytes or of
    files, runs anywhere."""

    def __init__(self) -> None:
        cores = os.cpu_count() or 1
        self.disk = Pool(16, "disk", translate=disk.refusal)
        self.long = Pool(16, "disk, long", translate=disk.refusal, initializer=run_anywhere)
        # Of their own, so that downloads do not wait for writes to be synced, nor either for long work.
        self.reading = Pool(8, "reading", translate=disk.refusal)
        self.hashing = Pool(cores, "hashing", translate=disk.refusal, initializer=give_way)
        self.long_hashing = Pool(cores, "hashing, long", translate=disk.refusal, initializer=give_way_anywhere)
        # Of their own, so that whoever asks for the signatures of much holds up no merge.
        self.signing = Pool(2, "signing", translate=disk.refusal, initializer=give_way_anywhere)
        # Of its own, because whoever reads at a pace sleeps in its thread.
        self.scrubbing = Pool(1, "scrubbing", translate=disk.refusal, initializer=give_way_to_all)

    def shutdown(self) -> None:
        """Take no more work."""
        short = (self.disk, self.reading, self.hashing)
        for pool in (*short, self.long, self.long_hashing, self.signing, self.scrubbing):
            pool.shutdown()


class Store(UploadBytes, BlobBytes, Housekeeping):
    """All that the store of a process can do, from `prepare` to `close`."""

    # Whether its blobs are files of this machine, which backups link and copy.
    keeps_files: bool
    marks: InstallationMark
    # What could lose data here though all works, once it was prepared.
    doubt: str | None = None

    def __init__(self, reading: Pool | None = None) -> None:
        """`reading`: the threads that wait for where blobs are read from."""
        self.threads = Threads()
        self._stopping = threading.Event()
        self._signatures = Signatures(self, reading or self.threads.reading, self.threads.signing, self.check_stopping)

    @abstractmethod
    async def prepare(self) -> None:
        """Make ready to store. Raises ConfigurationError if this place is unfit."""

    def stop(self) -> None:
        """Let long work end with Stopping."""
        self._stopping.set()

    def check_stopping(self) -> None:
        """Raises Stopping."""
        if self._stopping.is_set():
            raise Stopping

    async def read_signature(self, sha256: str, size: int) -> bytes:
        """The signature of a blob; computed where it is not kept, which takes as long as reading the blob. Raises Gone if
        the blob is not there, or is something else; StorageFull, StorageFailed, Stopping."""
        return await self._signatures.read(sha256, size)

    async def hash_blob(self, found: Found, pace: Pace | None, *, with_md5: bool) -> Digests | None:
        """The digests of bytes of a blob, in the trash or not, as they are read from the disk now; None if there are none.
        With a `pace` it gives way to everything else. Raises StorageFailed, Stopping."""
        pool = self.threads.long_hashing if pace is None else self.threads.scrubbing
        return await pool.run(self._hash, found, pace, with_md5)

    def _hash(self, found: Found, pace: Pace | None, with_md5: bool) -> Digests | None:
        sha256, md5 = hashlib.sha256(), hashlib.md5(usedforsecurity=False) if with_md5 else None
        with closing(self.pieces(found, cold=True)) as pieces, suppress(Gone):
            for piece in pieces:
                sha256.update(piece)
                if md5 is not None:
                    md5.update(piece)
                if pace is not None:
                    pace(len(piece))
                self.check_stopping()
            return Digests(md5=None if md5 is None else md5.hexdigest(), sha256=sha256.hexdigest())
        return None

    async def drain(self) -> None:
        """Wait until the digests have followed what was stored."""

    def close(self) -> None:
        """Give up the threads; nothing is stored after this."""
        self.threads.shutdown()
