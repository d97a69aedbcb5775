"""Builds the OpenAPI 3.1 document from the route table and the types of the bodies."""

import json
import re
from typing import Any

import msgspec

from uploader import __version__
from uploader.domain.upload import MAX_CHUNK_COUNT
from uploader.http.shared.mount import Mount
from uploader.http.shared.operation import FORM, MD5_PATTERN, SIGNED, Operation, Parameter
from uploader.http.shared.problem import STATUS, Problem, title_of
from uploader.http.shared.responses import Json

_REF = "#/components/schemas/{name}"
_PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "md5": {"schema": {"type": "string", "pattern": MD5_PATTERN}, "description": "MD5 of the whole file."},
    "n": {
        "schema": {"type": "integer", "minimum": 0, "maximum": MAX_CHUNK_COUNT - 1},
        "description": "Chunk number, from 0.",
    },
    "id": {"schema": {"type": "string"}, "description": "The id."},
    "user_id": {"schema": {"type": "string"}, "description": "A user."},
    "slug": {"schema": {"type": "string"}, "description": "What the URL of a link ends in."},
    "upload_id": {"schema": {"type": "string"}, "description": "An upload."},
    "code": {"schema": {"type": "string", "enum": sorted(STATUS)}, "description": "The code of an error."},
}
# OpenAPI links: for an operation and a status, the operations that a client can call next, and the places of their
# parameters.
_UPLOAD = {"id": "$response.body#/upload/id", "n": 0}
_BY_MD5 = {"md5": "$request.path.md5", "n": 0}
_FILE = {"id": "$response.body#/file/id"}
_OF_UPLOAD = ("GET {0}", "PUT {0}/chunks/{{n}}", "POST {0}/merge", "POST {0}/proof", "DELETE {0}")
_OF_FILE = ("GET /me/files/{id}", "GET /me/files/{id}/content", "PATCH /me/files/{id}", "DELETE /me/files/{id}")
_LINKS: dict[tuple[str, int], list[tuple[str, dict[str, Any]]]] = {
    ("POST /uploads", 201): [
        *((each.format("/uploads/{id}"), _UPLOAD) for each in _OF_UPLOAD),
        ("PATCH /uploads/{id}", _UPLOAD),
    ],
    ("POST /files/{md5}", 201): [(each.format("/files/{md5}"), _BY_MD5) for each in _OF_UPLOAD],
    ("PUT /uploads/{id}/chunks/{n}", 201): [(each, _FILE) for each in _OF_FILE],
    ("PUT /files/{md5}/chunks/{n}", 201): [(each, _FILE) for each in _OF_FILE],
    ("PUT /files/{md5}", 201): [(each, _FILE) for each in _OF_FILE],
    ("POST /me/files", 201): [(each, _FILE) for each in _OF_FILE],
}
_PROBLEM = _REF.format(name="Problem")
# The statuses of answers that may have a body other than JSON.
_WITH_BYTES = (200, 206)
_BINARY = {"type": "string", "format": "binary"}


def document(operations: list[Operation]) -> dict[str, Any]:
    kinds = _types_of(operations)
    schemas, components = _renamed(msgspec.json.schema_components(kinds, ref_template=_REF))
    schema_of = dict(zip(kinds, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for operation in operations:
        method, _, path = operation.route.partition(" ")
        paths.setdefault(path.replace(":path}", "}"), {})[method.lower()] = _operation(operation, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "uploader",
            "version": __version__,
            "description": "A resumable chunked-upload server. Every error is `application/problem+json`.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "link": {"type": "apiKey", "in": "query", "name": "signature"},
            },
        },
    }


def described_at(mount: Mount, described: dict[str, Any]) -> dict[str, Any]:
    """Add the server's URL, as this client reaches it, to the document."""
    return {**described, "servers": [{"url": f"{mount.origin}{mount.prefix}" or "/"}]}


def _renamed(schemas: Any) -> Any:
    """Strip the suffix `Schema` from type names; in the code it tells these types from those of the services."""
    return json.loads(re.sub(r'(?<=\w)Schema(?=")', "", json.dumps(schemas)), object_hook=_plain)


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """Describe a pair by the type and number of its items. msgspec writes `prefixItems` with `items: false`, and client
    generators do not understand a schema that is `false`. Raises TypeError if the items differ."""
    if schema.get("items") is not False:
        return schema
    items, *others = schema.pop("prefixItems")
    if any(other != items for other in others):
        raise TypeError(schema)
    return schema | {"items": items}


def _types_of(operations: list[Operation]) -> list[Any]:
    kinds: list[Any] = [Problem]
    for operation in operations:
        for answer in (operation.takes, *operation.responses.values()):
            kinds += [kind for kind in _alternatives(answer) if kind not in kinds]
    return kinds


def _alternatives(answer: Any) -> tuple[Any, ...]:
    if answer is None:
        return ()
    return answer if isinstance(answer, tuple) else (answer,)


def _operation(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    described: dict[str, Any] = {
        "operationId": _id_of(operation.route),
        "summary": operation.summary,
        "tags": [operation.tag],
        "responses": _responses(operation, schema_of),
    }
    if operation.access != "open":
        described["security"] = [{"bearer": []}, *([{"link": []}] if operation.access in SIGNED else [])]
    parameters = [
        {"name": name, "in": "path", "required": True, **_PATH_PARAMETERS.get(name, {"schema": {"type": "string"}})}
        for name in re.findall(r"\{(\w+)", operation.route)
    ]
    parameters += [_parameter(parameter) for parameter in operation.parameters]
    if parameters:
        described["parameters"] = parameters
    content: dict[str, Any] = {media_type: {"schema": _BINARY} for media_type in operation.takes_bytes}
    if operation.takes is not None:
        content = {"application/json": {"schema": schema_of[operation.takes]}}
        if operation.takes_form is not None:
            json_text = {"type": "string", "contentMediaType": "application/json"}
            form = {
                "type": "object",
                "properties": {operation.takes_form: json_text},
                "required": [operation.takes_form],
            }
            content[FORM] = {"schema": form}
    if operation.takes is not None or operation.takes_bytes:
        described["requestBody"] = {"required": not operation.takes_optional, "content": content}
    return described


def _parameter(parameter: Parameter) -> dict[str, Any]:
    described = {"name": parameter.name, "in": parameter.place, "schema": parameter.schema}
    return described | {"description": parameter.about} | ({"required": True} if parameter.required else {})


def _id_of(route: str) -> str:
    """Return an operation id in the form of a function name, for example `put_uploads_id_chunks_n`."""
    words = route.replace(":path}", "}").lower()
    return re.sub(r"[^a-z0-9]+", "_", f"{words}root" if words.endswith(" /") else words).strip("_")


def _links(operation: Operation, status: int) -> dict[str, Any]:
    links = {}
    for target, parameters in _LINKS.get((operation.route, status), []):
        used = {name: place for name, place in parameters.items() if f"{{{name}}}" in target}
        links[_id_of(target)] = {"operationId": _id_of(target), "parameters": used}
    return links


def _responses(operation: Operation, schema_of: dict[Any, Any]) -> dict[str, Any]:
    responses: dict[str, Any] = {}
    for status, answer in operation.responses.items():
        responses[str(status)] = {"description": "OK"}
        schemas = [schema_of[kind] for kind in _alternatives(answer)]
        if schemas:
            schema = schemas[0] if len(schemas) == 1 else {"oneOf": schemas}
            responses[str(status)]["content"] = {"application/json": {"schema": schema}}
        if status in _WITH_BYTES and operation.media_types:
            content = responses[str(status)].setdefault("content", {})
            content.update((media_type, {"schema": _of_media(media_type)}) for media_type in operation.media_types)
        if links := _links(operation, status):
            responses[str(status)]["links"] = links
    by_status: dict[int, list[str]] = {}
    for code in _problems(operation):
        by_status.setdefault(STATUS[code], []).append(code)
    for status, others in operation.said.items():
        by_status.setdefault(status, []).extend(others)
    for status, codes in sorted(by_status.items()):
        described = "; ".join(f"`{code}` ({title_of(code)})" for code in codes)
        schema = {"$ref": _PROBLEM, "properties": {"code": {"enum": codes}}}
        responses[str(status)] = {"description": described, "content": {"application/problem+json": {"schema": schema}}}
    return responses


def _of_media(media_type: str) -> dict[str, Any]:
    if media_type == Json.media_type:
        return {"type": "object"}
    return {"type": "string"} if media_type.startswith("text/") else _BINARY


def _problems(operation: Operation) -> list[str]:
    # 403 also answers a token with a scope for something else.
    common = [] if operation.access == "open" else ["unauthenticated", "forbidden"]
    takes, asks = operation.takes is not None, any(each.place == "query" for each in operation.parameters)
    codes = (
        # The server answers these itself on every path, before the application sees the request.
        *("bad-request", "target-too-long", "headers-too-large"),
        *common,
        # 429 also answers a user who sends too much JSON at once.
        *(("body-timeout", "too-many-requests") if takes or operation.takes_bytes else ()),
        *(("unsupported-media-type", "storage-full") if operation.takes_bytes else ()),
        *(("precondition-failed",) if 304 in operation.responses else ()),
        *operation.problems,
        *(("invalid-request",) if takes or asks else ()),
        *(("invalid-md5",) if "{md5}" in operation.route else ()),
        *(("unavailable",) if 503 not in operation.responses else ()),
    )
    return list(dict.fromkeys(codes))
