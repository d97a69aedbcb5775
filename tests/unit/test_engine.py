"""What the database's own troubles are to the rest of the server."""

from typing import Any, NoReturn

import pytest
from sqlalchemy import text

from uploader.database.engine import Database
from uploader.errors import Unavailable


async def test_a_server_that_goes_away_in_the_middle_of_a_connect_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database("mysql+asyncmy://root@127.0.0.1:9/none")

    def connect(*_arguments: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("Transport does not expose socket instance")

    monkeypatch.setattr(database.engine.sync_engine.dialect, "connect", connect)
    with pytest.raises(Unavailable):
        await database.read(lambda connection: connection.execute(text("SELECT 1")))
    await database.close()
