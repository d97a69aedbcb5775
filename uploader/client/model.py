"""Types of what client and server say to each other. A newer server may say more: members not listed here are ignored."""

from datetime import datetime
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from msgspec.structs import force_setattr, replace

IfExists = Literal["keep", "replace", "fail"]
LinkKind = Literal["download", "upload"]
# A time without a zone would be none that can be compared.
Moment = Annotated[datetime, Meta(tz=True)]
# How a file came to be where it is: sent or fetched now; `instant`, its content was there; `present`, so was this very file.
How = Literal["sent", "fetched", "instant", "present"]


class Digests(Struct, frozen=True):
    """Both digests of the same bytes, in lower-case hex."""

    md5: str
    sha256: str


class File(Struct, frozen=True):
    """A finished file. `instant` says that its bytes were not sent when it was made; `damaged` that the server found its
    bytes to have gone bad: the same content sent again heals it. `modified_at` is when the file was changed where it came
    from, if that was told."""

    id: str
    name: str
    md5: str | None
    sha256: str
    size: int
    created_at: Moment
    instant: bool
    damaged: bool = False
    modified_at: Moment | None = None
    # `held`: a gate of the server has yet to let it pass, and until then nobody else sees it.
    state: Literal["held"] | None = None

    @property
    def is_held(self) -> bool:
        return self.state is not None


class DeletedFile(File, frozen=True, kw_only=True):
    """A file in the trash: since when, until when, and why: `deleted`, `replaced` by another one of its name, `refused`, or
    deleted by an administrator (`admin`)."""

    deleted_at: Moment
    expires_at: Moment
    reason: str
    # Why a gate refused it.
    detail: str | None = None


class DeletedPage(Struct, frozen=True):
    """A page of deleted files; `next` is the cursor of the following one."""

    files: list[DeletedFile]
    next: Annotated[str, Meta(max_length=8192)] | None


class Upload(Struct, frozen=True):
    """An open upload; `missing` holds inclusive ranges of chunk numbers in order."""

    id: str
    md5: str | None
    name: str
    size: int
    chunk_size: int
    chunk_count: int
    received_bytes: int
    missing: list[tuple[int, int]]
    state: str
    created_at: datetime
    expires_at: datetime
    merged_bytes: int = 0


class Usage(Struct, frozen=True):
    """The caller's accounts, in bytes."""

    total_space: int
    use_space_finished: int
    use_space_unfinished: int
    reserved: int
    available: int


class Folder(Struct, frozen=True):
    """A folder: a name that ends with a slash, how many files are in it, and their bytes; `at_least` so many where the
    server did not count them all."""

    name: str
    files: int
    bytes: int
    at_least: bool = False


class EmptyFolder(Struct, frozen=True):
    """A folder in which nothing lies: a name that ends with a slash."""

    name: str


class EmptyFolders(Struct, frozen=True):
    """A page of them; `next` is the cursor of the following one."""

    folders: list[EmptyFolder]
    next: Annotated[str, Meta(max_length=4096)] | None


class FilePage(Struct, frozen=True):
    """A page of files; `next` is the cursor of the following one. Of one level it has folders, too; an older server knows no
    levels, and gives none."""

    files: list[File]
    # It goes back in a URL; the longest is a name and an id.
    next: Annotated[str, Meta(max_length=8192)] | None
    folders: list[Folder] | None = None


class Changed(Struct, frozen=True):
    files: int


class Link(Struct, frozen=True):
    """A link of one's own: `download` gives a file, or a folder (a name that ends with a slash), to anyone with its URL;
    `upload` takes files from them into a folder. `downloads`, `files` and `bytes` are what came of it, the `max_` figures
    what may; None: as much as there is room for."""

    id: str
    kind: LinkKind
    url: str
    name: str
    created_at: Moment
    expires_at: Moment
    label: str | None = None
    has_password: bool = False
    downloads: int = 0
    files: int = 0
    bytes: int = 0
    max_downloads: int | None = None
    max_files: int | None = None
    max_bytes: int | None = None


class LinkList(Struct, frozen=True):
    links: list[Link]


class LinkFacts(Struct, frozen=True):
    """A link as it tells of itself to those who have its URL: its name, the last part, only where there is no password."""

    kind: LinkKind
    expires_at: Moment
    label: str | None = None
    has_password: bool = False
    name: str | None = None
    max_files: int | None = None
    max_bytes: int | None = None


class LinkSession(Struct, frozen=True):
    """A bearer token, good for one link."""

    token: str
    expires_at: Moment


class UploadList(Struct, frozen=True):
    uploads: list[Upload]


class State(Struct, frozen=True):
    """The state of a content of the caller: `complete`, `uploading`, `merging` or `absent`."""

    state: str


class ChunkSizes(Struct, frozen=True):
    """In bytes."""

    default: int
    max: int
    min: int = 64 << 10


class Config(Struct, frozen=True):
    chunk_size: ChunkSizes


def _note_held(told: "Line | RestoreLine | Held") -> None:
    """Let a file say itself what stands beside it."""
    if told.file is not None and (isinstance(told, Held) or told.state == "held"):
        force_setattr(told, "file", replace(told.file, state="held"))


class Line(Struct, frozen=True):
    """The outcome of one member of a batch: a file, or a problem."""

    name: str
    status: int
    state: Literal["held"] | None = None
    file: File | None = None
    problem: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _note_held(self)


class Lines(Struct, frozen=True):
    results: list[Line]


class RestoreLine(Struct, frozen=True):
    """The outcome of one deleted file: a file, a problem, or neither while its content is examined."""

    id: str
    status: int
    state: Literal["restoring", "held"] | None = None
    file: File | None = None
    problem: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        _note_held(self)


class RestoreLines(Struct, frozen=True):
    results: list[RestoreLine]


class Challenge(Struct, frozen=True):
    """A request to prove that the caller holds the content, by an HMAC over these ranges of it."""

    id: str
    nonce: str
    user_id: str
    ranges: list[tuple[int, int]]
    algorithm: str
    expires_at: datetime


# Answers about an upload, told apart by their `state`.


class Open(Struct, frozen=True, tag_field="state", tag="uploading"):
    upload: Upload


class Merging(Struct, frozen=True, tag_field="state", tag="merging"):
    upload: Upload


class Complete(Struct, frozen=True, tag_field="state", tag="complete"):
    file: File


class Held(Complete, frozen=True, tag_field="state", tag="held"):
    """The upload is whole; a gate has yet to let its file pass."""

    def __post_init__(self) -> None:
        _note_held(self)


class Challenged(Struct, frozen=True, tag_field="state", tag="challenge"):
    """The content is there, and is given against a proof."""

    challenge: Challenge


class Acknowledged(Struct, frozen=True, tag_field="state", tag="uploading"):
    received_bytes: int
    received_chunks: int
    chunk_count: int
    duplicate: bool


UploadStatus = Open | Merging | Complete | Held
Opened = Open | Merging | Complete | Held | Challenged
Sent = Acknowledged | Merging | Complete | Held
