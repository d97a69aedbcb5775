"""What every error looks like on the wire (RFC 9457): one check for all tests of the HTTP contract."""

from typing import Any

import httpx2

_MEMBERS = {"type", "title", "status", "detail", "code", "retryable", "request_id"}


def problem(response: httpx2.Response, status: int, code: str, prefix: str = "") -> dict[str, Any]:
    """The members of a problem, after checking that the answer is this one and is complete; `prefix`: of the server."""
    body: dict[str, Any] = response.json()
    assert (response.status_code, body.get("code")) == (status, code), body
    assert response.headers["content-type"] == "application/problem+json"
    assert body.keys() >= _MEMBERS
    assert (body["type"], body["status"]) == (f"{prefix}/problems/{code}", status)
    assert body["title"]
    assert body["detail"]
    assert isinstance(body["retryable"], bool)
    assert body["request_id"] == response.headers["x-request-id"]
    return body
