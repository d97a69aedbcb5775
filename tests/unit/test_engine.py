"""What the database's own troubles are to the rest of the server, and which connections a server that says hello knows."""

from typing import Any, NoReturn

import pytest
from sqlalchemy import text

from uploader.database.engine import Database
from uploader.database.mysql import Hello, Session
from uploader.errors import Unavailable


async def test_a_server_that_goes_away_in_the_middle_of_a_connect_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    database = Database("mysql+asyncmy://root@127.0.0.1:9/none")

    def connect(*_arguments: Any, **_options: Any) -> NoReturn:
        raise RuntimeError("Transport does not expose socket instance")

    monkeypatch.setattr(database.engine.sync_engine.dialect, "connect", connect)
    with pytest.raises(Unavailable):
        await database.read(lambda connection: connection.execute(text("SELECT 1")))
    await database.close()


@pytest.mark.parametrize(
    ("url", "place"),
    [
        ("mysql+asyncmy://me:a-secret@127.0.0.1:9/none", "the database at 127.0.0.1:9 (UPLOADER_DATABASE_URL)"),
        ("sqlite:////nowhere/uploader.db", "the database /nowhere/uploader.db"),
    ],
)
async def test_only_whoever_runs_the_server_is_told_which_database_is_away_and_why(url: str, place: str) -> None:
    database = Database(url)
    with pytest.raises(Unavailable) as raised:
        await database.read(lambda connection: connection.execute(text("SELECT 'a name'")))
    await database.close()
    assert raised.value.reason.startswith(f"{place} is away: ")
    assert not {"a-secret", "a name", "SELECT"} & set(raised.value.reason.replace("'", " ").split())
    assert (raised.value.detail, raised.value.fields) == ("The database is away; nothing was acknowledged.", {})


HELLO = Hello("db1 3306 1", frozenset({7, 8}), asked_at=100.0)


@pytest.mark.parametrize(
    ("session", "known"),
    [
        (Session("db1 3306 1", 7, made_at=50.0), True),
        (Session("db1 3306 1", 9, made_at=50.0), False),  # it does not list it: from before it was started
        (Session("db2 3306 2", 7, made_at=50.0), False),  # another server
        (Session("db2 3306 2", 9, made_at=101.0), True),  # made after the question: it may be
    ],
)
def test_a_server_knows_a_connection_that_it_lists(session: Session, known: bool) -> None:
    assert HELLO.knows(session) == known
