"""The transactions, one function each: every change of uploads, files, blobs and users, and of the accounts by them.

Rows are locked in one order everywhere: upload, blob, file, user. Each function runs inside `Database.transact`, so it
may be run again from its start; what it raises rolls everything back. Those of users and tokens are in `users`.
"""

from uploader.database.transactions import users
from uploader.database.transactions.blobs import collect_blob, note_scrub, note_unreadable, relocate, with_blob_locked
from uploader.database.transactions.files import (
    Added,
    Verdict,
    add_instant_file,
    add_whole_file,
    add_whole_files,
    delete_file,
    delete_files,
    move_files,
    rename_file,
)
from uploader.database.transactions.rows import BlobLost, ClaimsChanged, NotOpen
from uploader.database.transactions.uploads import (
    Flushed,
    LengthTold,
    Received,
    choose,
    close_upload,
    drop_waiting,
    flush,
    forget_metadata,
    grow,
    join_concatenation,
    merge,
    open_upload,
    order_concatenation,
    purge_uploads,
    settle_concatenation,
    tell_digests,
    tell_length,
    withdraw,
)

__all__ = [
    "Added",
    "BlobLost",
    "ClaimsChanged",
    "Flushed",
    "LengthTold",
    "NotOpen",
    "Received",
    "Verdict",
    "add_instant_file",
    "add_whole_file",
    "add_whole_files",
    "choose",
    "close_upload",
    "collect_blob",
    "delete_file",
    "delete_files",
    "drop_waiting",
    "flush",
    "forget_metadata",
    "grow",
    "join_concatenation",
    "merge",
    "move_files",
    "note_scrub",
    "note_unreadable",
    "open_upload",
    "order_concatenation",
    "purge_uploads",
    "relocate",
    "rename_file",
    "settle_concatenation",
    "tell_digests",
    "tell_length",
    "users",
    "with_blob_locked",
    "withdraw",
]
