"""How much room the disk has for uploads to come: the one formula, for the admission of uploads and for reports."""

from dataclasses import dataclass

_DEFAULT_FLOOR_BYTES = 1 << 30
_DEFAULT_FLOOR_SHARE = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """The disk, in bytes; `promised_bytes` is what open uploads may still write."""

    total_bytes: int
    # With what the trash holds, which gives way when it is needed.
    free_bytes: int
    trash_bytes: int
    floor_bytes: int
    promised_bytes: int

    @property
    def available_bytes(self) -> int:
        """What may still be opened."""
        return max(0, self.free_bytes - self.promised_bytes - self.floor_bytes)

    @property
    def limit_bytes(self) -> int:
        """What the disk could hold at most, if there were nothing on it."""
        return max(0, self.total_bytes - self.floor_bytes)

    def fits(self, size: int) -> bool:
        """Whether a file of `size` bytes may be opened; an empty one may only while the floor is kept."""
        return self.free_bytes - self.promised_bytes - size >= self.floor_bytes

    def lacking_bytes(self, size: int) -> int:
        """How much of the trash has to give way for a file of `size` bytes."""
        needed = self.floor_bytes + self.promised_bytes + size
        return max(0, needed - (self.free_bytes - self.trash_bytes))


def floor_of(total_bytes: int, set_bytes: int | None) -> int:
    """What new uploads leave free: as it is set, else the larger of 5 % and 1 GiB."""
    return max(total_bytes // _DEFAULT_FLOOR_SHARE, _DEFAULT_FLOOR_BYTES) if set_bytes is None else set_bytes
