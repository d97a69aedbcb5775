"""What `put --go-on` does: an open upload that another client began gets what it lacks."""

from uploader.cli.client.showing.events import Planned
from uploader.cli.client.showing.reporters import Reporter
from uploader.cli.client.telling import Telling
from uploader.client import AmbiguousName, AsyncClient, ClientError, LocalFile, NotFound, Outcome, Progress, Upload


async def put_rest(client: AsyncClient, reporter: Reporter, path: str, name_or_id: str) -> int:
    """Send the rest of the file, and say how it ended; the exit code. Raises ClientError where no upload is meant."""
    upload = _the_one(await client.uploads(), name_or_id)
    local = LocalFile.at(path, upload.name)
    told = Telling(reporter)
    reporter.show(Planned(1, local.size))
    told.begun(local)

    def tell(progress: Progress) -> None:
        told.moved(local, progress)

    try:
        file = await client.go_on(upload, path, on_progress=tell)
    except ClientError as error:
        told.ended(Outcome(local, error=error))
    else:
        told.ended(Outcome(local, file, "sent"))
    return told.sum_up(1, set())


def _the_one(uploads: list[Upload], name_or_id: str) -> Upload:
    meant = [upload for upload in uploads if name_or_id in (upload.id, upload.name)]
    if not meant:
        raise NotFound(f"there is no open upload {name_or_id!r}", code="upload-not-found", status=404)
    if len(meant) > 1:
        raise AmbiguousName(f"several open uploads are called so; which: {', '.join(each.id for each in meant)}")
    return meant[0]
