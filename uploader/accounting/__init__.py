"""The pending bytes and when they are due, in Redis: rebuildable from the disk and the database at any time."""
