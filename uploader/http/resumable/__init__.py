"""Resumable upload protocols other than the native one: tus and RUFH, for the same uploads."""
