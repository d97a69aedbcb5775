"""The trail: who did what to whom, and when.

Refuses to change what was written.
"""
