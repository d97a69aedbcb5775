"""Compares every figure that is kept with its definition, and repairs what can be repaired.

Refuses to guess: lost bytes stay reported.
"""
