"""Which connections a server that says hello knows."""

from uploader.database.mysql import Hello, Session

HELLO = Hello("db1 3306 1", frozenset({7, 8}), asked_at=100.0)


def test_a_server_knows_a_connection_that_it_lists() -> None:
    assert HELLO.knows(Session("db1 3306 1", 7, made_at=50.0))


def test_one_that_it_does_not_list_is_from_before_it_was_started() -> None:
    assert not HELLO.knows(Session("db1 3306 1", 9, made_at=50.0))


def test_the_same_number_of_another_server_is_another_connection() -> None:
    assert not HELLO.knows(Session("db2 3306 2", 7, made_at=50.0))


def test_one_that_was_made_after_the_question_may_be_known_all_the_same() -> None:
    assert HELLO.knows(Session("db2 3306 2", 9, made_at=101.0))
