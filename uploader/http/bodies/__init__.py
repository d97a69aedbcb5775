"""The bodies of requests: received whole, in memory within a budget or in a spool, counted as they arrive.

Refuses to know what they are for.
"""
