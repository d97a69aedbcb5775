"""The use cases of an upload, from its opening to its end, whatever protocol they are asked by.

Owns the order of the effects: disk, Redis, database. Refuses to know HTTP.
"""
