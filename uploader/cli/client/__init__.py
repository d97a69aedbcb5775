"""The commands for those who upload, and how they show what happens.

Refuses to know the server itself, which runs anywhere: they reach it by `uploader.client` alone.
"""
