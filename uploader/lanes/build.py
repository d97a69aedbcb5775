"""The hook by which hatchling compiles the kernels into the wheel, or beside its source for an editable installation.

Without a compiler, or if it fails, the wheel is of pure Python, and all the same complete. `HATCH_BUILD_NO_HOOKS=true` makes
it so anywhere. The library needs nothing of the system but its processor, so its wheel goes with any Linux, any libc and any
Python 3. hatchling is there while a wheel is built, and only then: the package does not import this.
"""

import os
import platform
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.config import BuilderConfig
from hatchling.builders.hooks.plugin.interface import BuildHookInterface

LIBRARY = "uploader/lanes/liblanes.so.1"
_SOURCE = "uploader/lanes/lanes.c"
_COMPILERS = ("cc", "gcc", "clang")
# All that libc has is left out, and what a compiler would call of it; the rest of GCC's own is linked in.
_OPTIONS = (
    *("-std=gnu11", "-O3", "-Wall", "-Wextra", "-Wno-psabi"),
    *("-ffreestanding", "-fno-tree-loop-distribute-patterns", "-fno-stack-protector"),
)
_LINKED = ("-shared", "-fPIC", "-nostdlib", "-Wl,--no-undefined")
_TIMEOUT_SECONDS = 120.0
# Also of the oldest systems of which pip knows that they are Linux (PEP 600, PEP 656).
_TAG = "py3-none-manylinux_2_17_{0}.musllinux_1_1_{0}"


def compile_kernel(source: Path, library: Path) -> None:
    """Raises OSError, subprocess.SubprocessError: the output of a compiler that fails goes with it."""
    named = shlex.split(os.environ.get("CC", ""))
    found: Sequence[str] = named or [next(filter(shutil.which, _COMPILERS), _COMPILERS[0])]
    command = [*found, *_OPTIONS, *_LINKED, "-o", str(library), str(source), "-lgcc"]
    # S603: CC is of whoever builds.
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)  # noqa: S603


class KernelHook(BuildHookInterface[BuilderConfig]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile it; `version` says which wheel is built: `standard` or `editable`."""
        self._directory = tempfile.TemporaryDirectory(prefix="uploader-kernel-")
        if sys.platform != "linux":
            return
        beside = Path(self.root, LIBRARY)
        library = Path(self._directory.name, beside.name)
        try:
            compile_kernel(Path(self.root, _SOURCE), library)
            if version == "editable":
                copied = beside.with_suffix(".partial")
                shutil.copy(library, copied)
                copied.replace(beside)  # at once: others may load it meanwhile
                return
        except (OSError, subprocess.SubprocessError) as error:
            if version == "editable":
                beside.unlink(missing_ok=True)  # of another source, perhaps
            said = getattr(error, "stderr", None) or error
            self.app.display_warning(f"Hashing in lanes is left out, because it was not compiled: {said}")
            return
        build_data["force_include"][str(library)] = LIBRARY
        build_data["pure_python"] = False
        build_data["tag"] = _TAG.format(platform.machine())

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what is in the wheel by now."""
        self._directory.cleanup()
