"""Races: two worker processes meet in one upload, file or content, a thousand times, each time a little differently."""
