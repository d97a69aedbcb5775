"""Make a thumbnail of each picture that comes: `UPLOADER_URL=… UPLOADER_TOKEN=… python3 thumbnails.py DIRECTORY`."""

import os
import sys
from pathlib import Path

from PIL import Image, ImageOps

from uploader.client import Task, Worker

worker = Worker(os.environ["UPLOADER_URL"], os.environ["UPLOADER_TOKEN"])
directory = Path(sys.argv[1])


@worker.handles("thumbnails", lease="5m", at_once=2)
def thumbnail(task: Task) -> None:
    if task.file.size > 100_000_000:
        return
    # A slow worker and its successor may make the same one: each writes its own, which gets its name when it is whole.
    picture, made = (directory / f".{task.id}.{task.fence}.{part}" for part in ("picture", "made"))
    try:
        small = smaller(task.save(picture))
        if small is not None:
            small.save(made, "JPEG")
            made.replace(directory / f"{task.file.id}.jpg")
    finally:
        picture.unlink(missing_ok=True)
        made.unlink(missing_ok=True)


def smaller(picture: Path) -> Image.Image | None:
    try:
        with Image.open(picture) as opened:
            small = ImageOps.exif_transpose(opened)
            small.thumbnail((256, 256))
            return small.convert("RGB")
    except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
        return None  # no picture, or a broken one: another attempt would end alike


if __name__ == "__main__":
    worker.run()  # until SIGTERM
