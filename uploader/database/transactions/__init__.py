"""The transactions, one function each: every change of uploads, files, blobs and users, and of the accounts by them.

Rows are locked in one order everywhere: upload, blob, file, link, user. Each function runs inside `Database.transact`, so it
may be run again from its start; what it raises rolls everything back.
"""

from uploader.database.transactions import bulk, files, gates, links, names, rows, trash, uploads, users

__all__ = ["bulk", "files", "gates", "links", "names", "rows", "trash", "uploads", "users"]
