"""The transactions, one function each: changes of uploads, files, blobs and users, with their accounting.

All transactions lock rows in one order: upload, blob, file, link, user. Each function runs inside `Database.transact`, which
may run a function again from its start. An exception rolls the transaction back.
"""

from uploader.database.transactions import bulk, files, gates, links, names, rows, trash, uploads, users

__all__ = ["bulk", "files", "gates", "links", "names", "rows", "trash", "uploads", "users"]
