"""Who may store how much: the one formula, for people. The decision itself is the conditional UPDATE in the database."""

from dataclasses import dataclass

from uploader.errors import QuotaExceeded


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """The accounts of one user, in bytes: one row of `user_info`."""

    user_id: str
    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int

    @property
    def available(self) -> int:
        """What may still be opened. Not negative, even if an administrator lowered the total below what is used."""
        return max(0, self.total_space - self.use_space_finished - self.reserved)

    def fits(self, size: int) -> bool:
        """Whether a file of `size` bytes may be opened; an empty one may only while nothing is over the total."""
        return size <= self.total_space - self.use_space_finished - self.reserved

    def refusal(self, requested: int) -> QuotaExceeded:
        """Why there is no room for so many bytes."""
        return QuotaExceeded(
            total_space=self.total_space,
            use_space_finished=self.use_space_finished,
            use_space_unfinished=self.use_space_unfinished,
            reserved=self.reserved,
            requested=requested,
        )
