"""What makes the head of a request ambiguous, beyond what the parser refuses."""

Headers = list[tuple[bytes, bytes]]


def fault_of(headers: Headers, http_version: str) -> str | None:
    """What is wrong with it (RFC 9112, sections 3.2 and 6.1)."""
    if http_version not in ("1.0", "1.1"):
        return "Only HTTP/1.1 and HTTP/1.0 are spoken here."
    names = [name for name, _ in headers]
    hosts = names.count(b"host")
    if hosts > 1 or (hosts == 0 and http_version == "1.1"):
        return "A request has one Host header."
    if b"transfer-encoding" not in names:
        return None
    codings = [value.strip().lower() for name, value in headers if name == b"transfer-encoding"]
    if http_version == "1.0" or codings != [b"chunked"]:
        return "The only Transfer-Encoding is chunked."
    return None


def has_body(headers: Headers) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip(b" 0")) for name, value in headers
    )
