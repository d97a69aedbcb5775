"""What a browser may show of a file, and as what: images, sound, films and PDF, by the end of its name.

Whatever the bytes are, none of these types lets them run in the origin of the pages: a browser that is told not to guess
takes an HTML page that is called `x.png` for a broken image. HTML and SVG are not among them.
"""

# With the policies under which they are shown: alone, or within a page of the same origin.
_ALONE = "sandbox; default-src 'none'; media-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'self'"
# Browsers open their viewer of PDF in no sandbox; nothing but this viewer takes this type.
_PDF = "default-src 'none'; object-src 'self'; style-src 'unsafe-inline'; frame-ancestors 'self'"

_TYPES = {
    "avif": "image/avif",
    "bmp": "image/bmp",
    "gif": "image/gif",
    "ico": "image/x-icon",
    "jpeg": "image/jpeg",
    "jpg": "image/jpeg",
    "png": "image/png",
    "webp": "image/webp",
    "m4v": "video/mp4",
    "mov": "video/quicktime",
    "mp4": "video/mp4",
    "ogv": "video/ogg",
    "webm": "video/webm",
    "aac": "audio/aac",
    "flac": "audio/flac",
    "m4a": "audio/mp4",
    "mp3": "audio/mpeg",
    "oga": "audio/ogg",
    "ogg": "audio/ogg",
    "opus": "audio/ogg",
    "wav": "audio/wav",
    "pdf": "application/pdf",
}


def shown_as(name: str) -> str | None:
    """The media type as which a file of this name may be shown; None: it is only ever saved."""
    _, dot, ending = name.rpartition(".")
    return _TYPES.get(ending.lower()) if dot else None


def headers_of(media_type: str, disposition: str) -> dict[str, str]:
    """Those that differ from a download's, which has this disposition."""
    return {
        "Content-Disposition": disposition.replace("attachment", "inline", 1),
        "Content-Security-Policy": _PDF if media_type == "application/pdf" else _ALONE,
        "X-Frame-Options": "SAMEORIGIN",
    }
