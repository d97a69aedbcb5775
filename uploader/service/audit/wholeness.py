"""Reports rows of the database that a byte flipped in, as far as that can be told."""

from uploader.database.audit import wholeness
from uploader.database.engine import Database
from uploader.service.audit.drift import Drift, Findings, Kind, cannot_be_repaired


class Wholeness:
    """Looking changes nothing, and nothing can be repaired: which value was there, a backup may tell."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def check(self, found: Findings) -> None:
        """Look at every row. Raises Unavailable, DatabaseDamaged if nothing can be said."""
        lines = await self._database.read(wholeness.contradictions)
        found.add((Drift(Kind.DATABASE, "the file", "ok", line) for line in lines), cannot_be_repaired)
        for row in await self._database.read(wholeness.malformed):
            subject, expected = f"{row.table} {row.rowid}", f"a valid {row.column}"
            found.add([Drift(Kind.DATABASE, subject, expected, row.value)], cannot_be_repaired)
