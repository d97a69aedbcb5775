"""The hatchling hook that compiles the kernels into the wheel, or beside the source of an editable installation.

Without a compiler, or if it fails, the wheel is pure Python, and still complete. `HATCH_BUILD_NO_HOOKS=true` has the
same effect. The library needs only the processor, so the wheel fits any Linux, any libc and any Python 3. hatchling is
installed only during the build, so the package does not import this module.
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
# Without libc, and without the calls to libc that a compiler adds. GCC's own library is linked in.
_OPTIONS = (
    *("-std=gnu11", "-O3", "-Wall", "-Wextra", "-Wno-psabi"),
    *("-ffreestanding", "-fno-tree-loop-distribute-patterns", "-fno-stack-protector"),
)
_LINKED = ("-shared", "-fPIC", "-nostdlib", "-Wl,--no-undefined")
_TIMEOUT_SECONDS = 120.0
# Also for the oldest systems that pip knows as Linux (PEP 600, PEP 656).
_TAG = "py3-none-manylinux_2_17_{0}.musllinux_1_1_{0}"


def compile_kernel(source: Path, library: Path) -> None:
    """Compile the library. Raises OSError, subprocess.SubprocessError with the output of the compiler."""
    named = shlex.split(os.environ.get("CC", ""))
    found: Sequence[str] = named or [next(filter(shutil.which, _COMPILERS), _COMPILERS[0])]
    command = [*found, *_OPTIONS, *_LINKED, "-o", str(library), str(source), "-lgcc"]
    # S603: CC is of whoever builds.
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)  # noqa: S603


class KernelHook(BuildHookInterface[BuilderConfig]):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the library. `version` is the kind of wheel: `standard` or `editable`."""
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
                copied.replace(beside)  # atomic, because other processes may load it meanwhile
                return
        except (OSError, subprocess.SubprocessError) as error:
            if version == "editable":
                beside.unlink(missing_ok=True)  # perhaps of an older source
            said = getattr(error, "stderr", None) or error
            self.app.display_warning(f"Hashing in lanes is left out, because it was not compiled: {said}")
            return
        build_data["force_include"][str(library)] = LIBRARY
        build_data["pure_python"] = False
        build_data["tag"] = _TAG.format(platform.machine())

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary library, which the wheel contains now."""
        self._directory.cleanup()
