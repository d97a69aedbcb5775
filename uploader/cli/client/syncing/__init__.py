"""`sync`: what is at one end becomes what is at the other.

Refuses to delete anything that it does not know to be missing at the source: while something could not be read or moved,
and for a source that has nothing at all.
"""
