"""The questions of reports, in pages and in sums.

Writes nothing but the snapshot of a day.
"""
