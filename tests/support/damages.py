"""What may become of the files of the embedded Valkey, while it is down or under it."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

Damage = Callable[[Path], None]


def append_zeros(directory: Path) -> None:
    """What a power cut leaves where a file had grown, and its bytes were not there yet."""
    with the_log(directory).open("ab") as file:
        file.write(bytes(512))


def alter_the_middle(directory: Path) -> None:
    log = the_log(directory)
    with log.open("r+b") as file:
        file.seek(log.stat().st_size // 2)
        file.write(b"\xff" * 60)


def remove_the_log(directory: Path) -> None:
    the_log(directory).unlink()


def remove_the_base(directory: Path) -> None:
    (base,) = directory.glob("appendonlydir/*.base.aof")
    base.unlink()


def break_the_manifest(directory: Path) -> None:
    _manifest(directory).write_text("nonsense\n")


def empty_the_manifest(directory: Path) -> None:
    os.truncate(_manifest(directory), 0)


def put_a_file_for_the_inner_directory(directory: Path) -> None:
    shutil.rmtree(directory / "appendonlydir")
    (directory / "appendonlydir").write_text("no directory")


def put_a_file_for_the_directory(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.write_text("no directory")


def put_a_directory_for_the_socket(directory: Path) -> None:
    (directory / "r.sock").unlink(missing_ok=True)
    (directory / "r.sock").mkdir()


def empty_the_note(directory: Path) -> None:
    os.truncate(directory / "engine.json", 0)


def forbid_the_log(directory: Path) -> None:
    the_log(directory).chmod(0)


def forbid_the_directory(directory: Path) -> None:
    directory.chmod(0)


# Of the content and kinds of files; and of what may be done with them, which does not bind root.
WRONG: tuple[Damage, ...] = (
    append_zeros,
    alter_the_middle,
    remove_the_log,
    remove_the_base,
    break_the_manifest,
    empty_the_manifest,
    put_a_file_for_the_inner_directory,
    put_a_file_for_the_directory,
    put_a_directory_for_the_socket,
    empty_the_note,
)
FORBIDDEN: tuple[Damage, ...] = (forbid_the_log, forbid_the_directory)


def the_log(directory: Path) -> Path:
    """The append-only file that is written."""
    return max(directory.glob("appendonlydir/*.incr.aof"))


def _manifest(directory: Path) -> Path:
    (manifest,) = directory.glob("appendonlydir/*.manifest")
    return manifest
