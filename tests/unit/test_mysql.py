"""Which connections a server that says hello knows."""

import pytest

from uploader.database.mysql import Hello, Session

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
