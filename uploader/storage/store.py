"""The whole store of a process, behind the seam: all capabilities together."""

from typing import Protocol

from uploader.storage.base import Arrivals, Bounded, Housekeeping, Marked, Withdrawing
from uploader.storage.contents import BlobBytes, Trash
from uploader.storage.wholes import WholeBytes


class Store(Withdrawing, BlobBytes, Housekeeping, Bounded, Protocol):
    """All that the store of a process can do, from `prepare` to `close`."""

    @property
    def wholes(self) -> WholeBytes:
        """Where parts are made to wholes."""

    @property
    def trash(self) -> Trash:
        """Where it keeps what would be deleted otherwise."""

    @property
    def arrivals(self) -> Arrivals:
        """Where contents are stored that come whole."""

    @property
    def marks(self) -> Marked: ...

    @property
    def keeps_files(self) -> bool:
        """Whether its blobs are files of this machine, which backups link and copy."""

    @property
    def doubt(self) -> str | None:
        """What could lose data here though all works, once it was prepared."""

    async def prepare(self) -> None:
        """Make ready to store. Raises ConfigurationError if this place is unfit."""

    def stop(self) -> None:
        """Let long work end with Stopping."""

    async def drain(self) -> None:
        """Wait until the digests have followed what was stored."""

    def close(self) -> None:
        """Give up the threads; nothing is stored after this."""
