"""The use cases, one set for every protocol: they tie the disk, Redis and the database together, in that order."""
