"""Every column of text keeps any text in every SQL mode and character set of a connection."""

import pytest

from tests.integration.test_sql_text import SETTINGS, check_every_column
from tests.support.stack import patient


@pytest.mark.parametrize("setting", SETTINGS)
async def test_every_column_keeps_its_text_in_every_mode(served_url: str, setting: str) -> None:
    database = patient(served_url)
    await check_every_column(database, setting)
    await database.close()
