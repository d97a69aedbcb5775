"""What the commands tell of, as events; and how that reaches a person, or a program.

Refuses to do anything itself: it only hears what happens.
"""
