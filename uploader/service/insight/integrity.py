"""Whether what is stored is what it should be, as far as anybody has looked: for gauges, and for warnings."""

from dataclasses import dataclass

from uploader.database import contents
from uploader.database.engine import Database
from uploader.service.upkeep.scrubbing import Age, Scrubbing
from uploader.service.upkeep.strays import kept_strays
from uploader.units import format_duration


@dataclass(frozen=True, slots=True)
class Seen:
    """What was found so far."""

    damaged_blobs: int
    unreadable_blobs: int
    kept_strays: int
    age: Age


class Integrity:
    """Asks the database alone."""

    def __init__(self, database: Database, scrubbing: Scrubbing) -> None:
        self._database = database
        self._scrubbing = scrubbing

    async def look(self) -> Seen:
        """Raises Unavailable."""
        damaged = await self._database.read(contents.count_damaged_blobs)
        unreadable = await self._database.read(contents.count_unreadable_blobs)
        return Seen(damaged, unreadable, await kept_strays(self._database), await self._scrubbing.age())

    async def warning(self) -> str | None:
        """What somebody should look at, in words. Raises Unavailable."""
        seen = await self.look()
        warnings = []
        if seen.damaged_blobs:
            warnings.append(f"damaged contents: {seen.damaged_blobs}, see `uploader scrub`")
        if seen.unreadable_blobs:
            warnings.append(f"contents that can't be read: {seen.unreadable_blobs}, see the log")
        if seen.kept_strays:
            warnings.append(
                f"blobs that no row names: {seen.kept_strays}, too many to be what crashes left; is this their database? "
                "`uploader cleanup --yes` puts them away"
            )
        if not seen.age.within_goal:
            age = format_duration(round(seen.age.seconds))
            warnings.append(f"a content was not read back for {age}: UPLOADER_SCRUB_RATE is too low, or no worker runs")
        return "; ".join(warnings) or None
