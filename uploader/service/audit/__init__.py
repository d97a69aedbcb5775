"""Compares every figure that is kept with its definition, and mends what can be mended.

Refuses to guess: lost bytes stay reported.
"""
