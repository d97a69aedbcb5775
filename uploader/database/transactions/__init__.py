"""The transactions, one function each: every change of uploads, files, blobs and users, and of the accounts by them.

Rows are locked in one order everywhere: upload, blob, file, user. Each function runs inside `Database.transact`, so it
may be run again from its start; what it raises rolls everything back. Those of users and tokens are in `users`.
"""

from uploader.database.transactions import users
from uploader.database.transactions.blobs import collect_blob, note_scrub, with_blob_locked
from uploader.database.transactions.files import add_instant_file, delete_file, rename_file
from uploader.database.transactions.rows import BlobLost, ClaimsChanged, NotOpen
from uploader.database.transactions.uploads import (
    Flushed,
    Received,
    close_upload,
    flush,
    merge,
    open_upload,
    purge_uploads,
    tell_digests,
    withdraw,
)

__all__ = [
    "BlobLost",
    "ClaimsChanged",
    "Flushed",
    "NotOpen",
    "Received",
    "add_instant_file",
    "close_upload",
    "collect_blob",
    "delete_file",
    "flush",
    "merge",
    "note_scrub",
    "open_upload",
    "purge_uploads",
    "rename_file",
    "tell_digests",
    "users",
    "with_blob_locked",
    "withdraw",
]
