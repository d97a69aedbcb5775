"""The operations that create a name: the table which names, gates, limits, events and the pre-create hook read.

Each transaction that gives a file or a folder a name takes its row of this table. A new operation is one more row, which
says what the hook is asked, what a gate holds, what counts and which event follows.
"""

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from uploader.domain.events import EventType
from uploader.domain.upload import IfExists

# The word of an operation in a question to the pre-create hook.
Word = Literal["create", "rename", "move", "restore"]


@dataclass(frozen=True, slots=True)
class Creation:
    """An operation that creates a name."""

    # None: an earlier operation asked the hook about this name.
    question: Word | None
    _: KW_ONLY
    # Whether the answer of the hook may have another name. An answer never has other names for several.
    takes_answered_name: bool = False
    # The fate of a file that has the name already, if the client says nothing.
    if_exists: IfExists = IfExists.FAIL
    # Whether the result is the file that has the name already, if that has the same content.
    merges: bool = False
    # Whether gates hold a file that has not passed them.
    is_gated: bool = False
    # Whether the quota of bytes, and the number of files and folders, bound the operation.
    counts_bytes: bool = False
    counts_files: bool = False
    # The event that tells of the file.
    event: EventType | None = None


# The file of an upload: the hook was asked, and room was reserved, when the upload began.
UPLOAD = Creation(
    "create",
    takes_answered_name=True,
    if_exists=IfExists.KEEP,
    merges=True,
    is_gated=True,
    event=EventType.FILE_FINISHED,
)
# A file without an upload: in one request, as a member of a batch, or instantly.
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
# An empty folder, also the folder of a new link that collects.
FOLDER = Creation("create", takes_answered_name=True, counts_files=True)
RENAME = Creation("rename", takes_answered_name=True)
# Files and folders get another prefix, or another folder.
MOVE = Creation("move", merges=True)
# A deleted file comes back. A file in the trash counts in the number of files.
RESTORE = Creation("restore", takes_answered_name=True, is_gated=True, counts_bytes=True, event=EventType.FILE_FINISHED)
# A file that gates held gets the name that was asked about when the file came.
PASS = Creation(None, if_exists=IfExists.KEEP, event=EventType.FILE_FINISHED)

CREATIONS = (UPLOAD, FILE, FOLDER, RENAME, MOVE, RESTORE, PASS)
