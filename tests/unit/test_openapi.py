"""The OpenAPI document is whole, and says neither more nor less than the router serves."""

import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from uploader.bootstrap import Services, build_application
from uploader.http.app import Application
from uploader.http.shared.problem import STATUS
from uploader.settings import Settings

METHODS = {"get", "head", "post", "put", "patch", "delete"}


@asynccontextmanager
async def running(data: Path, **settings: Any) -> AsyncIterator[Application]:
    """The application over services that are connected to nothing."""
    services = Services(Settings(data=data, **settings))
    yield build_application(services)
    await services.close()


@pytest.fixture
async def application(tmp_path: Path) -> AsyncIterator[Application]:
    async with running(tmp_path) as application:
        yield application


@pytest.fixture
async def document(application: Application) -> dict[str, Any]:
    return await fetch(application)


def client_of(application: Application) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(app=application), base_url="http://test")


async def fetch(application: Application) -> dict[str, Any]:
    async with client_of(application) as client:
        response = await client.get("/openapi.json")
    assert response.status_code == 200
    body: dict[str, Any] = response.json()
    assert json.loads(json.dumps(body, allow_nan=False)) == body, "JSON without surprises"
    return body


def operations_of(document: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in document["paths"].items():
        assert set(item) <= METHODS
        for method, operation in item.items():
            yield path, method, operation


def values_in(value: Any) -> Iterator[dict[str, Any]]:
    """All objects in it."""
    if isinstance(value, dict):
        yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from values_in(inner)


def references_in(value: Any) -> Iterator[str]:
    return (found["$ref"] for found in values_in(value) if "$ref" in found)


def resolve(document: dict[str, Any], reference: str) -> Any:
    found: Any = document
    assert reference.startswith("#/")
    for step in reference[2:].split("/"):
        found = found[step]
    return found


async def test_every_reference_resolves_and_no_schema_is_left_over(document: dict[str, Any]) -> None:
    assert document["openapi"].startswith("3.1.")
    assert {"title", "version", "license"} <= set(document["info"])
    references = set(references_in(document))
    assert references
    assert all(isinstance(resolve(document, reference), dict) for reference in references)
    assert set(document["components"]["schemas"]) == {reference.rsplit("/", 1)[-1] for reference in references}


async def test_every_operation_and_answer_is_described_and_errors_are_problems(document: dict[str, Any]) -> None:
    operations = [operation for _, _, operation in operations_of(document)]
    identifiers = [operation["operationId"] for operation in operations]
    assert all(re.fullmatch(r"[a-z0-9_]+", identifier) for identifier in identifiers)
    assert len(set(identifiers)) == len(identifiers)
    assert all(operation["summary"] and operation["tags"] for operation in operations)
    known = {str(status) for status in STATUS.values()}
    for status, answer in (each for operation in operations for each in operation["responses"].items()):
        assert answer["description"]
        is_of_tus = status == "412" and "content" not in answer  # another version of it
        if status in known and not is_of_tus and "application/json" not in answer.get("content", {}):
            schema = answer["content"]["application/problem+json"]["schema"]
            problem = resolve(document, schema["$ref"])
            assert problem["title"] == "Problem"
            assert problem["properties"]["code"]["enum"] == sorted(STATUS)
            assert schema["properties"]["code"]["enum"] == re.findall(r"`([\w-]+)`", answer["description"])


async def test_every_parameter_of_a_path_is_described_and_required_and_none_twice(document: dict[str, Any]) -> None:
    for path, _, operation in operations_of(document):
        parameters = operation.get("parameters", [])
        described = [entry for entry in parameters if entry["in"] == "path"]
        assert [entry["name"] for entry in described] == re.findall(r"\{(\w+)\}", path)
        assert all(entry["required"] and entry["schema"] for entry in described)
        assert len({(entry["in"], entry["name"].lower()) for entry in parameters}) == len(parameters)


async def test_bodies_are_described_by_schemas_that_are_objects(document: dict[str, Any]) -> None:
    """Generators know no others."""
    for _, _, operation in operations_of(document):
        for said in (operation.get("requestBody", {}), *operation["responses"].values()):
            assert all(media["schema"] for media in said.get("content", {}).values())
    assert [found for found in values_in(document["components"]["schemas"]) if found.get("items") is False] == []
    assert document["servers"] == [{"url": "/"}]
    resumable = document["paths"]["/resumable"]["post"], document["paths"]["/resumable/{id}"]["patch"]
    assert [set(each["requestBody"]["content"]) for each in resumable] == [
        {"application/offset+octet-stream", "application/octet-stream"},
        {"application/offset+octet-stream", "application/partial-upload", "application/octet-stream"},
    ]


async def test_just_the_routes_and_methods_that_are_served_are_there(
    application: Application, document: dict[str, Any]
) -> None:
    assert set(document["paths"]) == {path.replace(":path}", "}") for path in application.routing.paths}
    async with client_of(application) as client:
        for path, item in document["paths"].items():
            tus = {"Tus-Resumable": "1.0.0"}  # what is asked without it is not looked at
            response = await client.request("TRACE", re.sub(r"\{\w+\}", "x", path), headers=tus)
            assert response.status_code == 405
            served = set(response.headers["allow"].lower().split(", "))
            assert served - {"head"} == set(item) - {"head"}
            assert ("head" in served) == ("get" in item or "head" in item)


async def test_only_what_needs_no_token_is_without_security(document: dict[str, Any], tmp_path: Path) -> None:
    async with running(tmp_path, metrics="open") as opened:
        assert "security" not in (await fetch(opened))["paths"]["/metrics"]["get"]
    is_open = {path for path, _, operation in operations_of(document) if "security" not in operation}
    assert is_open == {
        *("/", "/admin/", "/livez", "/readyz", "/config", "/docs", "/openapi.json"),
        *("/problems/{code}", "/static/{path}", "/client.js", "/client.d.ts", "/drop.js", "/drop.d.ts"),
        *("/s/{slug}", "/s/{slug}/session"),
    }
    for path, _, operation in operations_of(document):
        assert ("401" in operation["responses"]) == (path not in is_open)
        # A token that is good for something else alone is refused everywhere.
        assert ("forbidden" in codes_of(operation, 403)) == (path not in is_open)
    # The pre-create hook is asked about each name that an operation creates; of a batch, each member has its own answer.
    asking = {f"{method} {path}" for path, method, each in operations_of(document) if "refused" in codes_of(each, 403)}
    assert asking == {
        *("post /files/{md5}", "put /files/{md5}", "post /me/files", "post /uploads", "post /resumable"),
        *("post /files/{md5}/proof", "post /uploads/{id}/proof", "patch /me/files/{id}", "patch /me/files"),
        *("post /me/files/move", "post /me/folders", "post /me/links"),
        *("post /me/trash/{id}/restore", "post /me/trash/restore", "post /admin/trash/{id}/restore"),
    }


def codes_of(operation: dict[str, Any], status: int) -> list[str]:
    """Those of the problems that it says may be answered with a status."""
    return re.findall(r"`([\w-]+)`", operation["responses"].get(str(status), {}).get("description", ""))
