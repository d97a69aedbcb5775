"""Bytes that go bad on the disk."""

from pathlib import Path


def flip_bit(path: Path, bit: int = 77) -> None:
    """Flip a bit of a file, in its place."""
    with path.open("r+b") as file:
        file.seek(bit // 8)
        (byte,) = file.read(1)
        file.seek(bit // 8)
        file.write(bytes([byte ^ 1 << bit % 8]))
