"""Runs the migrations on the connection that `uploader.database.migrate` gives, or, for the `alembic` command of a
developer, on the database of the settings in force.
"""

import asyncio

from alembic import context
from sqlalchemy import Connection

from uploader.database.models import metadata


def run(connection: Connection) -> None:
    # One transaction for all: on SQLite, whose DDL is transactional, a failed migration leaves nothing behind. MySQL and
    # MariaDB commit it with each statement, see `uploader.database.migrate`.
    context.configure(connection=connection, target_metadata=metadata, transactional_ddl=True)
    with context.begin_transaction():
        context.run_migrations()


async def run_with_settings() -> None:
    from uploader.bootstrap import database_url
    from uploader.database.engine import Database
    from uploader.settings import Settings

    database = Database(database_url(Settings.load()))
    async with database.engine.begin() as connection:
        await connection.run_sync(run)
    await database.close()


given: Connection | None = context.config.attributes.get("connection")
if given is not None:
    run(given)
else:
    asyncio.run(run_with_settings())
