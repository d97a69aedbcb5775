"""The Dockerfile, carried out line by line in roots of Debian's, where nothing runs containers. The base has Debian's own
Python of that version in place of the one that the image of Python has."""

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_BASE = ROOT / ".roots" / "image"
_MOST_MIB = 150

# As `docker run --read-only --tmpfs /tmp --cap-drop ALL --security-opt no-new-privileges --network none -v …:/data` does.
_CONTAINED = """
import fcntl, os, socket, struct, sys
root, volume, user, *command = sys.argv[1:]
with socket.socket() as any_socket:
    fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.system(f"set -e; mount --bind {root} {root}; mount -o remount,bind,ro {root}; mount -t proc proc {root}/proc;"
          f"mount -t tmpfs tmpfs {root}/tmp; mount --bind {volume} {root}/data") and sys.exit("it can't be mounted")
os.chroot(root)
os.chdir("/data")
privileges = ["--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--clear-groups"]
os.execvp("setpriv", ["setpriv", *privileges, "--reuid", user.split(":")[0], "--regid", user.split(":")[1], *command])
"""
_TRIED = """
set -e
"$@" >/tmp/log 2>&1 &
server=$!
for _ in $(seq 300); do ! sh -c "$HEALTHCHECK" 2>/dev/null || break; sleep 0.2; done
sh -c "$HEALTHCHECK" || { cat /tmp/log; exit 1; }
export HOME=/tmp
uploader login http://127.0.0.1:8000 <owner.token
head -c 9000000 /dev/urandom >/tmp/film
uploader put /tmp/film
uploader get film -o /tmp/copy
cmp /tmp/film /tmp/copy
! touch /opt/uploader/written 2>/dev/null
id -u
kill $server
wait $server || { cat /tmp/log; exit 1; }
"""


@dataclass
class Stage:
    root: Path
    environment: dict[str, str] = field(default_factory=dict)
    user: str = "0:0"
    command: list[str] = field(default_factory=list)
    healthcheck: list[str] = field(default_factory=list)
    told: dict[str, str] = field(default_factory=dict)

    def run(self, line: str) -> None:
        """A line of the shell, as the build runs it."""
        mounted = 'mount -t proc proc "$0/proc"; exec /usr/sbin/chroot "$0" sh -ec "$1"'
        subprocess.run(
            ["unshare", "--mount", "--pid", "--fork", "bash", "-euc", mounted, self.root, line],
            env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", "DEBIAN_FRONTEND": "noninteractive"}
            | self.environment,
            check=True,
        )

    def take(self, sources: list[str], of: Path, target: str) -> None:
        """Copy files, and what is in directories, as COPY does."""
        for source in (of / name.removeprefix("/") for name in sources):
            into = self.root / target.removeprefix("/")
            if source.is_dir():
                shutil.copytree(source, into, symlinks=True, dirs_exist_ok=True)
            else:
                into = into / source.name if target.endswith("/") else into
                into.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, into)


def instructions() -> Iterator[tuple[str, str]]:
    lines = [line for line in (ROOT / ".ci/Dockerfile").read_text().splitlines() if not line.startswith("#")]
    for line in re.sub(r"\\\n\s*", "", "\n".join(lines)).splitlines():
        if line:
            verb, _, rest = line.partition(" ")
            yield verb, rest


def build(directory: Path) -> Stage:
    """The last stage of the Dockerfile."""
    stages: dict[str, Stage] = {}
    arguments: dict[str, str] = {}
    stage = None
    for verb, rest in instructions():
        if verb == "ARG":
            name, _, value = rest.partition("=")
            arguments[f"${{{name}}}"] = value
        elif verb == "FROM":
            base, _, name = rest.partition(" AS ")
            assert re.fullmatch(r"python:3\.14-slim", arguments[base])
            stage = stages[name] = Stage(directory / (name or "image"))
            subprocess.run(["cp", "-a", "--reflink=auto", _BASE, stage.root], check=True)
        elif verb == "COPY":
            assert stage is not None
            whose, *paths = shlex.split(rest) if rest.startswith("--from=") else ("", *shlex.split(rest))
            stage.take(paths[:-1], stages[whose.removeprefix("--from=")].root if whose else ROOT, paths[-1])
        elif stage is not None and verb == "RUN":
            stage.run(rest)
        elif stage is not None and verb == "ENV":
            stage.environment |= dict(each.split("=", 1) for each in shlex.split(rest))
        elif stage is not None and verb == "USER":
            stage.user = rest
        elif stage is not None and verb == "CMD":
            stage.command = json.loads(rest)
        elif stage is not None and verb == "HEALTHCHECK":
            stage.healthcheck = json.loads(rest.partition("CMD ")[2])
        else:
            assert stage is not None
            assert verb in ("WORKDIR", "VOLUME", "EXPOSE"), f"nobody knows how to carry out {verb}"
            stage.told[verb] = rest
    assert stage is not None
    return stage


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    if not _BASE.exists():
        made: list[str | Path] = [ROOT / "tests/support/root", _BASE, "sid", "python3.14-venv apt passwd"]
        subprocess.run(made, check=True)
        # `python` and `pip`, where the image of Python has them.
        subprocess.run(["chroot", _BASE, "python3.14", "-m", "venv", "/usr/local"], check=True)
    return build(tmp_path_factory.mktemp("image"))


def mib_of(directory: Path) -> int:
    return int(subprocess.run(["du", "-sm", directory], stdout=subprocess.PIPE, check=True).stdout.split()[0])


def test_it_is_small(image: Stage) -> None:
    assert 50 < mib_of(image.root) - mib_of(_BASE) <= _MOST_MIB


def test_it_serves_as_nobody_on_a_root_that_is_read_only(image: Stage, tmp_path: Path) -> None:
    assert image.told == {"WORKDIR": "/data", "VOLUME": "/data", "EXPOSE": "8000"}
    owner = (image.root / "data").stat()
    assert (f"{owner.st_uid}:{owner.st_gid}", owner.st_mode & 0o777) == (image.user, 0o700)
    volume = tmp_path / "volume"
    subprocess.run(["cp", "-a", image.root / "data", volume], check=True)
    done = subprocess.run(
        [
            *("unshare", "--mount", "--pid", "--net", "--fork", "--kill-child", "python3", "-c", _CONTAINED),
            *(str(image.root), str(volume), image.user, "sh", "-c", _TRIED, "sh", *image.command),
        ],
        env=image.environment | {"HEALTHCHECK": shlex.join(image.healthcheck)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert image.user.split(":")[0] in done.stdout.splitlines()


def test_what_was_made_smaller_works(image: Stage) -> None:
    image.run("""python -c '
import asyncmy, boto3, confluent_kafka, cryptography.hazmat.bindings._rust, greenlet, hiredis, httptools
import isal.isal_zlib, pyfastcdc, uvloop
confluent_kafka.Producer({})
for service in ("s3", "sts", "sso", "sso-oidc"):
    boto3.client(service, region_name="eu-central-1")
'""")
