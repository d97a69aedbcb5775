"""Errors: every one has a code and a message, and is a problem document (RFC 9457)."""

import json
import re
from typing import Any

import pytest
from starlette.requests import Request

from uploader import errors
from uploader.errors import NotFound, QuotaExceeded, UploaderError, message_of
from uploader.http.shared.problem import ERRORS, STATUS, explain, problem_response, title_of
from uploader.runtime.observability import request_id


def below(error: type[UploaderError]) -> list[type[UploaderError]]:
    return [error, *(each for child in error.__subclasses__() for each in below(child))]


ALL = [error for error in below(UploaderError) if error.__module__ == errors.__name__]
# Two that group others, one that never reaches a client, and those that are to a client what their parent is.
WITHOUT_CODE = {
    *(
        "DatabaseDamaged",
        "DatabaseFull",
        "StorageReadOnly",
        "LengthExceeded",
        "ConfigurationError",
        "SchemaBehind",
        "Conflict",
        "Refused",
        "StorageAway",
    ),
    *("StorageFailed", "StorageTooSmall", "Unverified", "UploadBusy", "ServerBusy"),
}
RETRYABLE = {"body-timeout", "digest-mismatch", "storage-full", "too-many-requests", "too-many-uploads", "unavailable"}


def page_of(code: str) -> Request:
    return Request({"type": "http", "path_params": {"code": code}, "headers": []})


def test_every_code_has_a_status_and_every_status_an_error() -> None:
    assert {error.code for error in below(UploaderError)} == set(STATUS) == set(ERRORS)
    assert {code: error.code for code, error in ERRORS.items()} == {code: code for code in STATUS}
    assert ERRORS["internal-error"] is UploaderError
    assert ERRORS["not-found"] is NotFound
    assert all(400 <= status < 600 for status in STATUS.values())
    # Whoever is told to come back later must be allowed to.
    assert all(ERRORS[code].retryable for code, status in STATUS.items() if status in (408, 429, 503, 507))


def test_a_problem_has_all_members_and_the_headers_of_its_status() -> None:
    for code, error in ERRORS.items():
        token = request_id.set("the-request")
        try:
            response = problem_response(error())
        finally:
            request_id.reset(token)
        document: dict[str, Any] = json.loads(bytes(response.body))
        assert document == {
            "type": f"/problems/{code}",
            "title": title_of(code),
            "status": STATUS[code],
            "detail": error().detail,
            "code": code,
            "retryable": error.retryable,
            "request_id": "the-request",
        }
        assert response.status_code == STATUS[code]
        assert response.headers["content-type"] == "application/problem+json"
        assert ("retry-after" in response.headers) == (STATUS[code] in (429, 503)), code
        assert response.headers.get("www-authenticate") == ("Bearer" if STATUS[code] == 401 else None), code


def test_the_fields_of_an_error_are_members_headers_are_added_and_a_title_is_the_code_in_words() -> None:
    response = problem_response(QuotaExceeded(requested=5), {"Allow": "GET"})
    assert json.loads(bytes(response.body))["requested"] == 5
    assert response.headers["allow"] == "GET"
    titles = {"md5-mismatch": "MD5 mismatch", "sha256-conflict": "SHA-256 conflict", "upload-gone": "Upload gone"}
    assert {code: title_of(code) for code in titles} == titles


async def test_every_code_has_a_page_for_a_person() -> None:
    for code, error in ERRORS.items():
        page = bytes((await explain(page_of(code))).body).decode()
        for said in (f"<h1>{title_of(code)}</h1>", f"HTTP status {STATUS[code]}"):
            assert said in page
        assert re.fullmatch(r"[A-Z`].*[.:]", message_of(error)), f"{code} is not explained in a sentence"
        assert ("Trying again later may help" in page) == error.retryable, code


async def test_an_unknown_code_has_no_page() -> None:
    for code in ("", "no-such-code", "<script>", "404"):
        with pytest.raises(NotFound):
            await explain(page_of(code))


def test_every_error_has_a_code_of_its_own_except_those_that_only_group() -> None:
    own = {error.__name__: error.code for error in ALL if error.__name__ not in WITHOUT_CODE}
    assert len(set(own.values())) == len(own)
    assert {error.code for error in ALL} == set(own.values())
    codes = [own[name] for name in ("InvalidMd5", "NotAllowed", "Sha256Conflict")]
    assert codes == ["invalid-md5", "refused", "sha256-conflict"], "a code is the name of its error"
    assert {error.code for error in ALL if error.retryable} == RETRYABLE


def test_the_first_line_of_the_docstring_is_the_message() -> None:
    for error in ALL:
        raised = error()
        assert raised.detail == str(raised) == message_of(error)
        assert raised.detail.endswith("."), error


def test_a_precise_detail_and_fields_are_kept() -> None:
    error = errors.FileTooLarge("Too large by far.", limit=5)
    assert (error.detail, str(error), error.fields) == ("Too large by far.", "Too large by far.", {"limit": 5})
    bad = errors.InvalidRequest.field("size", "is missing")
    assert (bad.detail, bad.fields["errors"]) == ("size: is missing", [{"field": "size", "reason": "is missing"}])
