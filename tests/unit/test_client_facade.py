"""The client without an event loop: all that the other one can, with the same arguments and words."""

import inspect
from typing import assert_type

from uploader.client import AsyncClient, Client, File, Transfer

_PUBLIC = {name for name in vars(AsyncClient) if not name.startswith("_")}


def test_no_method_is_missing() -> None:
    assert {name for name in vars(Client) if not name.startswith("_")} == _PUBLIC


def test_arguments_and_words_are_those_of_the_other() -> None:
    for name in _PUBLIC - {"close"}:
        ours, theirs = getattr(Client, name), getattr(AsyncClient, name)
        told, wanted = inspect.signature(ours), inspect.signature(theirs)
        assert told.parameters == wanted.parameters
        returned = str(wanted.return_annotation).replace("client.transfer.AsyncT", "client.synchronous.T")
        assert str(told.return_annotation) == returned.replace("AsyncIterator", "Iterator")
        assert ours.__annotations__["return"] == told.return_annotation
        assert ours.__doc__ == theirs.__doc__
        assert ours.__doc__, name
        assert not inspect.iscoroutinefunction(ours)


def types_as_their_users_see_them(client: Client) -> None:
    """For mypy, which complains of a complaint that is not there any more."""
    assert_type(client.upload("a", "b", if_exists="replace"), File)
    assert_type(client.start("a"), Transfer[File])
    assert_type(next(client.files("a/", part="b")), File)
    assert_type(Client.from_link("a", remember=False), Client)
    Client.from_link(1)  # type: ignore[arg-type]
    client.upload("a", nmae="b")  # type: ignore[call-arg]
    client.rename(3, "b")  # type: ignore[arg-type]
    Client("http://localhost", conections=2)  # type: ignore[call-arg]
