"""Backups: the database and the blobs that it names, kept somewhere else, and an installation made of one.

Refuses to keep what is rebuilt (Redis), what is not finished (`temp`), and what is secret (`owner.token`, settings).
"""
