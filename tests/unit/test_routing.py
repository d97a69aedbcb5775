"""A path leads to the operations of its route, and nowhere else."""

import pytest
from starlette.responses import Response

from uploader.http.shared.operation import Call, Operation, Routing

TABLE = [
    ("GET", "/"),
    ("POST", "/files/{md5}"),
    ("POST", "/files/status"),
    ("GET", "/files/{md5}"),
    ("PUT", "/files/{md5}/chunks/{n}"),
    ("GET", "/static/{path:path}"),
    ("GET", "/admin/"),
]


async def handler(_call: Call) -> Response:
    raise AssertionError


@pytest.fixture
def routing() -> Routing:
    return Routing([Operation(method=m, path=path, handler=handler, summary="", tag="") for m, path in TABLE])


@pytest.mark.parametrize(
    ("path", "place", "params"),
    [
        ("/", "/", {}),
        ("/files/status", "/files/status", {}),
        ("/files/abc", "/files/{md5}", {"md5": "abc"}),
        ("/files/abc/chunks/7", "/files/{md5}/chunks/{n}", {"md5": "abc", "n": "7"}),
        ("/static/a/b.js", "/static/{path:path}", {"path": "a/b.js"}),
        ("/admin/", "/admin/", {}),
    ],
)
def test_a_path_leads_to_its_place(routing: Routing, path: str, place: str, params: dict[str, str]) -> None:
    found = routing.find(path)
    assert found is not None
    assert (found.place.path, found.path_params) == (place, params)


@pytest.mark.parametrize(
    "path",
    [
        "",
        "files",
        "//",
        "/files",
        "/files/",
        "/files//chunks/7",
        "/files/abc/",
        "/admin",
        "/admin/\n",
        "/files/a/b",
        "/é",
    ],
)
def test_what_is_no_path_of_the_table_leads_nowhere(routing: Routing, path: str) -> None:
    assert routing.find(path) is None


def test_a_place_has_all_methods_of_its_path_and_head_where_there_is_get(routing: Routing) -> None:
    found = routing.find("/files/abc")
    assert found is not None
    assert found.place.allow == "GET, HEAD, POST"
    assert found.place.by_method["HEAD"] is found.place.by_method["GET"]
