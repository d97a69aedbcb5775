"""Every setting of the server, read once from `UPLOADER_*` environment variables, typed, frozen, and passed in.

Nothing else in the package reads the environment, but for the crash points of the tests. A name that is not in the table,
and a value that does not parse, stop the start with one line each.
"""

from uploader.settings.loading import Settings

__all__ = ["Settings"]
