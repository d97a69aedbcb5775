"""Receiving, against the targets of its issue and beside servers that do it otherwise."""
