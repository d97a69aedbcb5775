"""Contents that come whole: each is one object, under a key of its own, before there is a row. The row names it."""

from collections.abc import Mapping, Sequence

from uploader.crashpoints import crash_point
from uploader.errors import StorageFull
from uploader.storage.base import Arrival
from uploader.storage.hashes import digests_of
from uploader.storage.s3 import keys
from uploader.storage.s3.bucket import Bucket
from uploader.tasks import Pool, all_or_none


class S3Arrivals:
    """The contents that arrive in this process."""

    def __init__(self, bucket: Bucket, pool: Pool, hashing: Pool) -> None:
        self._bucket = bucket
        self._pool = pool
        self._hashing = hashing

    async def store(self, arrivals: Sequence[Arrival]) -> None:
        await all_or_none(map(self._digest, arrivals))
        first: dict[str, Arrival] = {}
        for arrival in arrivals:
            if arrival.error is None:
                first.setdefault(arrival.sha256_of_bytes, arrival)
        await all_or_none(map(self._put, first.values()))
        for arrival in arrivals:
            if arrival.error is None:
                stored = first[arrival.sha256_of_bytes]
                arrival.place, arrival.error = stored.place, stored.error
        crash_point("arrival.after_put")

    async def _digest(self, arrival: Arrival) -> None:
        arrival.digests = await self._hashing.run(digests_of, arrival.body)
        arrival.compare()

    async def _put(self, arrival: Arrival) -> None:
        key = keys.of_whole()
        try:
            await self._pool.run(self._bucket.put, key, arrival.body)
        except StorageFull as error:
            arrival.error = error  # of this content alone
            return
        arrival.place = key

    def place_blobs(self, arrivals: Sequence[Arrival]) -> Mapping[str, str]:
        """They lie where they are: the transaction says so. Of two with one content, the first one's object is named."""
        return {arrival.sha256_of_bytes: str(arrival.place) for arrival in arrivals}
