"""Dumps of the whole database, each of one moment, while others write; and a database made of one.

Refuses to know where a dump lies, and what else belongs to a backup.
"""
