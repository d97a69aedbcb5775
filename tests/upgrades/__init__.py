"""Data directories made by released versions, each in an archive of its own: the next version has to serve them.

Every format on disk, in Redis and in SQL has a version. Who changes one bears with what released versions wrote: before a
release, `python -m tests.upgrades.make` adds an archive of its data directory here, and none is ever made anew or removed.
"""
