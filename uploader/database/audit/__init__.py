"""Recounts of what the database keeps, and the transactions that repair it.

Refuses to decide whether to.
"""
