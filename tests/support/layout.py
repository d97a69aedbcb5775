"""Where things lie in the data directory: said a second time, so that nobody moves them unawares."""

from pathlib import Path


def blob_path(data: Path, sha256: str) -> Path:
    return data / "blobs" / sha256[:2] / sha256[2:4] / sha256
