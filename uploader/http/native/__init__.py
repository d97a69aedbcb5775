"""The protocol for those who upload: `/files`, `/uploads` and `/me`.

Handlers decode, call one use case and encode; the rules are in the services.
"""
