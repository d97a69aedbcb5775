"""The operations that create a name, as a table for names, gates, limits, events and the pre-create hook.

Each transaction that names a file or a folder uses its row of this table. To add an operation, add a row: the question
to the pre-create hook, gates, limits, and the event.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from uploader.domain.events import EventType
from uploader.domain.upload import IfExists

# The word for an operation in a question to the pre-create hook.
Word = Literal["create", "rename", "move", "restore"]


@dataclass(frozen=True, slots=True)
class Creation:
    """The rules of an operation that creates a name."""

    # None: an earlier operation has asked the hook about this name.
    question: Word | None
    _: KW_ONLY
    # True: the hook may answer with another name. With several names in a question it never does.
    takes_answered_name: bool = False
    # The choice about a file that has the name already, if the client does not say.
    if_exists: IfExists = IfExists.FAIL
    # True: a file with the same name and the same content is the result, and no new file is made.
    merges: bool = False
    # True: gates hold a file that has not passed them.
    is_gated: bool = False
    # Whether the quota in bytes, and the limit on files and folders, apply.
    counts_bytes: bool = False
    counts_files: bool = False
    # The event about the file.
    event: EventType | None = None


# The file of an upload. The hook was asked, and space was reserved, when the upload began.
UPLOAD = Creation(
    "create",
    takes_answered_name=True,
    if_exists=IfExists.KEEP,
    merges=True,
    is_gated=True,
    event=EventType.FILE_FINISHED,
)
# A file without an upload: sent in one request, as a member of a batch, or by an instant upload.
FILE = Creation(
    "create",
    takes_answered_name=True,
    if_exists=IfExists.KEEP,
    merges=True,
    is_gated=True,
    counts_bytes=True,
    counts_files=True,
    event=EventType.FILE_FINISHED,
)
# An empty folder, also the folder of a new link that collects files.
FOLDER = Creation("create", takes_answered_name=True, counts_files=True)
RENAME = Creation("rename", takes_answered_name=True)
# Files and folders get another prefix or another folder.
MOVE = Creation("move", merges=True)
# A deleted file comes back. Files in the trash count as files already.
RESTORE = Creation("restore", takes_answered_name=True, is_gated=True, counts_bytes=True, event=EventType.FILE_FINISHED)
# A held file gets its name after the gates let it pass. The hook was asked about the name when the file came.
PASS = Creation(None, if_exists=IfExists.KEEP, event=EventType.FILE_FINISHED)

CREATIONS = (UPLOAD, FILE, FOLDER, RENAME, MOVE, RESTORE, PASS)
