"""A resumable chunked-upload server: instant upload, exact accounting, no copy at the merge."""

__version__ = "0.3.0.dev0"
