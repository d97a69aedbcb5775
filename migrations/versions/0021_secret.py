"""Encrypt the slugs of links under the installation's secret, and forget the secret that signed until now.

Revision: 0021

The secret is outside of the database (`uploader.domain.secret`). From now on an empty slug is one that is derived from the
id of its link. What was there as it was is in no page of the database's files afterwards: a SQLite is rewritten once this is
committed.
"""

from uploader.database import migrate, secret
from uploader.errors import ConfigurationError
from uploader.runtime.clock import Clock

revision = "0021"
down_revision = "0020"
branch_labels = None
depends_on = None
# An older program would show the encrypted slugs, and sign with another secret.
compatible = False


def upgrade() -> None:
    connection, in_force = migrate.connection(), migrate.secret_in_force()
    if in_force is None:
        if secret.needs_secret(connection):
            raise ConfigurationError("the links of this database are to be encrypted: set UPLOADER_SECRET")
        return

    after: bytes | None = b""

    def protect() -> None:
        nonlocal after
        after = secret.protect(connection, in_force, after=after or b"", rewrites=True)

    if not secret.is_begun(connection, in_force):
        migrate.change(secret.begin_upgrade, connection, in_force, Clock().now())
    if not secret.needs_secret(connection):
        after = None
    while after is not None:
        migrate.change(protect)
    secret.rewrite_tables(connection, migrate.change)


def downgrade() -> None:
    """An older version shows no URL of the links that are there, and makes a secret of its own."""
    if migrate.columns("link"):
        migrate.change_in_ranges("link", "UPDATE link SET slug = X'' WHERE {range}")
        secret.forget(migrate.connection())
