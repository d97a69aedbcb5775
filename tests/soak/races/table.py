"""The races: what is there before, what each of the two processes does, and what is allowed to come of it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tests.soak.races import rounds
from tests.soak.races.before import Before, deleted, finished, in_turn, nothing, opened
from tests.soak.races.rounds import AGE_SECONDS, BOB, Act, Steady, one_chunk, one_of_five, sends, two_chunks
from tests.support.content import Content

TOO_FAST = "unavailable: This upload is changing too fast, or its bytes can't be found; try again."


@dataclass(frozen=True, eq=False)
class Race:
    """A row of the table.

    What is `allowed` are the words of A and B, and how it stands afterwards: Alice's upload or file, then Bob's if he has
    any. `steady` goes on in B without a pause; it belongs to no round, so B has no word then. SQLite has one writer at a
    time; what meets in the rows of the database is run where it can meet.
    """

    name: str
    content: Callable[[int], Content]
    before: Before
    a: Act
    b: Act | None
    allowed: set[tuple[str, str, str]]
    steady: Steady | None = None
    database: str = "sqlite"


RACES = (
    Race(
        "two senders of one chunk with different bytes",
        one_chunk,
        before=partial(opened, told=False),
        a=sends(0, upload="upload"),
        b=sends(0, upload="upload", lie=True),
        allowed={("complete", "complete", "file"), ("complete", "complete", "file of the lie")},
    ),
    Race(
        "a sender and a liar about the MD5",
        one_chunk,
        before=opened,
        a=sends(0),
        b=sends(0, lie=True),
        allowed={
            ("complete", "complete", "file"),
            ("md5-mismatch", "md5-mismatch", "md5-mismatch"),
            ("md5-mismatch", "upload-gone", "md5-mismatch"),
            ("upload-gone", "md5-mismatch", "md5-mismatch"),
        },
    ),
    Race(
        "cancel against a chunk",
        two_chunks,
        before=opened,
        a=sends(1),
        b=rounds.cancels,
        allowed={("acknowledged", "cancelled", "cancelled"), ("upload-gone", "cancelled", "cancelled")},
    ),
    Race(
        "cancel against the last chunk",
        one_chunk,
        before=opened,
        a=sends(0),
        b=rounds.cancels,
        allowed={("complete", "upload-not-found", "file"), ("upload-gone", "cancelled", "cancelled")},
    ),
    Race(
        "reopen against the last chunk",
        one_chunk,
        before=opened,
        a=sends(0),
        b=rounds.reopens,
        allowed={
            ("complete", "complete", "file"),  # before it
            ("upload-gone", "uploading", "open []"),
            ("complete", "uploading", "file"),  # after it, into the new upload
            # Twice between the announcement of the end and its commit; the client is told to try again.
            (TOO_FAST, "uploading", "open []"),
        },
    ),
    Race(
        "expiry against a chunk",
        two_chunks,
        before=partial(opened, age_seconds=AGE_SECONDS),
        a=sends(1),
        b=rounds.expires,
        allowed={("acknowledged", "left", "open [1]"), ("upload-gone", "expired", "expired")},
    ),
    Race(
        "the cleanup against a chunk",
        two_chunks,
        before=partial(opened, age_seconds=AGE_SECONDS),
        a=sends(1),
        b=None,
        allowed={("acknowledged", "", "open [1]"), ("upload-gone", "", "expired")},
        steady=rounds.cleans_up,
    ),
    Race(
        "hydrate against the last chunk",
        two_chunks,
        before=partial(opened, chunks=[1]),
        a=sends(0),
        b=rounds.asks,
        allowed={("complete", "told", "file")},
    ),
    Race(
        "two users merge one content",
        one_chunk,
        before=in_turn(partial(opened, user_id=BOB), opened),
        a=sends(0),
        b=sends(0, user_id=BOB),
        allowed={("complete", "complete", "file, file")},
        database="mariadb",
    ),
    Race(
        "one user merges one content twice under one name",
        one_chunk,
        before=in_turn(partial(opened, name="first", told=False), opened),
        a=sends(0),
        b=sends(0, upload="first"),
        allowed={("complete", "complete", "file")},
        database="mariadb",
    ),
    Race(
        "two workers merge one upload",
        one_chunk,
        before=partial(opened, chunks=[0]),
        a=rounds.merges,
        b=rounds.merges,
        allowed={("complete", "complete", "file")},
    ),
    Race(
        "delete of the last file against a merge",
        one_chunk,
        before=in_turn(partial(opened, user_id=BOB), finished),
        a=sends(0, user_id=BOB),
        b=rounds.deletes,
        allowed={("complete", "deleted", "nothing, file")},
        database="mariadb",
    ),
    Race(
        "delete of the last file against an instant upload",
        one_chunk,
        before=finished,
        a=rounds.opens_instantly,
        b=rounds.deletes,
        allowed={("complete", "deleted", "nothing, file"), ("uploading", "deleted", "nothing, open []")},
        database="mariadb",
    ),
    Race(
        "the collector against a merge",
        one_chunk,
        before=in_turn(partial(opened, user_id=BOB), finished, deleted),
        a=sends(0, user_id=BOB),
        b=rounds.collects,
        allowed={("complete", "collected", "nothing, file")},
        database="mariadb",
    ),
    Race(
        "the collector against everything",
        one_of_five,
        before=nothing,
        a=rounds.uploads_and_deletes,
        b=None,
        allowed={("deleted", "", "nothing")},
        steady=rounds.collects_all,
        database="mariadb",
    ),
    Race(
        "delete against a download",
        one_chunk,
        before=finished,
        a=rounds.downloads,
        b=rounds.deletes,
        allowed={("whole", "deleted", "nothing"), ("file-not-found", "deleted", "nothing")},
        database="mariadb",
    ),
)
BY_NAME = {race.name: race for race in RACES}
