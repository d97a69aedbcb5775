"""The transactions: every change of uploads, files, blobs and users, and of the accounts by them.

Rows are locked in one order everywhere: upload, blob, file, user.
"""
