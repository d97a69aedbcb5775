"""Bytes: the chunks of open uploads under `temp`, finished ones under `blobs`. The disk is the truth of what arrived."""
