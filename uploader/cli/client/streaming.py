"""What `put -` does: standard input becomes a file on the server."""

from uploader.cli.client.local.stdin import fill, spool
from uploader.cli.client.putting import choice, note_kept
from uploader.cli.client.showing.events import Planned
from uploader.cli.client.showing.reporters import Reporter
from uploader.cli.client.telling import Telling
from uploader.client import AsyncClient, ClientError, How, IfExists, LocalFile, Outcome, Progress
from uploader.client.transfers.names import checked_name

STDIN = "-"
_PATH = "/dev/stdin"


async def put_stdin(
    client: AsyncClient, reporter: Reporter, folder: str | None, name: str, *, if_exists: IfExists | None
) -> int:
    """Read it to its end, upload it, and say how it ended; the exit code. Raises InvalidName before anything is read."""
    name = checked_name(f"{folder.rstrip('/')}/{name}" if folder else name)
    told = Telling(reporter)
    with spool() as opened:
        local = LocalFile(_PATH, name, 0, 0)
        try:
            local = LocalFile(_PATH, name, await fill(opened, client, name), 0)
            reporter.show(Planned(1, local.size))
            told.begun(local)

            def tell(progress: Progress) -> None:
                told.moved(local, progress)

            chosen = await choice(client, if_exists)
            transfer = client.start(opened, name, if_exists=chosen, on_progress=tell)
            file = await transfer
        except ClientError as error:
            told.ended(Outcome(local, error=error))
        else:
            how: How = "sent" if transfer.progress.moved_bytes else "instant" if file.instant else "present"
            told.ended(Outcome(local, file, how))
            note_kept(reporter, told, if_exists, chosen)
    return told.sum_up(1, set())
