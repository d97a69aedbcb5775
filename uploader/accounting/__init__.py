"""What is pending and when it is due, in Redis: rebuildable from the disk and the database at any time."""
