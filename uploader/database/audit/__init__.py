"""Recounts of what is kept, and the transactions that set it right.

Refuses to decide whether to.
"""
