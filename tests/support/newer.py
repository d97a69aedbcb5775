"""A version newer than this one, as a database meets it."""

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from uploader.database import migrate

_FILE = """
import sqlalchemy as sa

from uploader.database import migrate

revision, down_revision = "{revision}", "{before}"
branch_labels = depends_on = None
compatible = {compatible}


def upgrade() -> None:
    migrate.create_table("newer_{revision}", sa.Column("id", sa.Integer, primary_key=True))
    {then}


def downgrade() -> None:
    migrate.drop_table("newer_{revision}")
"""


@contextmanager
def newer_version(directory: Path, marks: Sequence[bool], *, then: str = "pass") -> Iterator[None]:
    """Migrate within as a version that has a migration more for each of these, compatible or not; `then` ends them."""
    before, known = migrate.head_revision(), migrate.migrations_directory()
    shutil.copytree(known, directory, ignore=shutil.ignore_patterns("__pycache__"))
    for number, compatible in enumerate(marks, 9001):
        content = _FILE.format(revision=number, before=before, compatible=compatible, then=then)
        (directory / "versions" / f"{number}_newer.py").write_text(content)
        before = str(number)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(migrate, "migrations_directory", lambda: directory)
        yield
