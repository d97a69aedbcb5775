"""The housekeeping of a store on S3, days after the last kill: by then nothing may be left that no row names.

What was touched within an hour may be on its way, so the cleanup leaves it alone. Here days have passed by both clocks that
it goes by, that of the process and that of S3: more than the monkey lets a clock jump, because rows have such times. All
else is as `uploader cleanup --yes` and the workers have it.
"""

from datetime import datetime, timedelta
from unittest import mock

from tests.soak.installation import Installation
from tests.support.in_bucket import BucketBytes
from tests.support.process import environment
from uploader.bootstrap.services import Services
from uploader.runtime.clock import Clock
from uploader.settings import Settings
from uploader.storage.s3.bucket import Bucket

_LATER = timedelta(days=20)
_BATCH = 100_000


class _LaterClock(Clock):
    """Days ahead."""

    def now(self) -> datetime:
        return super().now() + _LATER


async def clean_up(installation: Installation, stored: BucketBytes) -> tuple[dict[str, int], list[str]]:
    """All housekeeping that takes away, at once; beside servers and workers that have nothing to do. What it did, and what
    no row names all the same."""
    settings = installation.settings | {"REDIS_URL": installation.redis.url}
    before = await stored.count()
    now = Bucket.clock
    with mock.patch.object(Bucket, "clock", lambda bucket: now(bucket) + _LATER):
        services = Services(Settings.load(environment(settings)), _LaterClock())
        try:
            directories = await _clean(services)
        finally:
            await services.close()
    after = await stored.count()
    removed = {"uploads without a row removed": directories, "objects removed": before[0] - after[0]}
    return removed | {"objects and multipart uploads with a row": sum(after)}, await stored.leftovers()


async def _clean(services: Services) -> int:
    await services.storage.prepare()  # which removes what probes have left
    cleaned = await services.cleanup.clean(opened_before=services.clock.now(), all_strays=True)
    assert not cleaned.left, "the housekeeping could not deal with all"
    await services.files.collect_all(_BATCH)
    await services.trash.empty()
    return cleaned.directories
