"""The use cases of an upload, from its opening to its end, whatever protocol they are asked by.

Owns the order of the effects: of what arrives disk, Redis, database; of an ending database, Redis, disk.
Refuses to know HTTP.
"""
