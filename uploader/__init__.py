"""A resumable chunked-upload server: instant upload, exact accounting, no copy at the merge."""

__version__ = "0.2.0"
