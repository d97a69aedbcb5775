"""nginx and Caddy, set up as docs/tls.md has it, but for ports and paths."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support import servers
from tests.support.certificates import Certified
from tests.support.process import wait_for
from uploader.runtime.embedded import end_with_parent

PROXY_PAGE = Path(__file__).parents[2] / "docs" / "tls.md"
HOST = "files.example"
PROXIES = ("nginx", "caddy")
program_of = servers.program_of
_LANGUAGES = {"nginx": "nginx", "caddy": "caddyfile"}


# What stands in the place of these, where the server is below a path.
_AT_THE_ROOT = {"nginx": r"    location / .*?(?=    location @)", "caddy": r"    reverse_proxy.*\}\n(?=\})"}


def printed(proxy: str, way: str = "") -> str:
    """The configuration that the document prints; `way`: "kept" or "stripped", below a path."""
    blocks = re.findall(rf"```{_LANGUAGES[proxy]}\n(.*?)```", PROXY_PAGE.read_text(), flags=re.DOTALL)
    whole, kept, *others = map(str, blocks)
    (stripped,) = others or (kept.replace("handle ", "handle_path "),)
    if not way:
        return whole
    configuration, replaced = re.subn(
        _AT_THE_ROOT[proxy], kept if way == "kept" else stripped, whole, count=1, flags=re.DOTALL
    )
    assert replaced == 1
    return configuration


@contextmanager
def running_proxy(
    proxy: str, directory: Path, certified: Certified, upstream_port: int, way: str = ""
) -> Iterator[int]:
    """One before the server on this port; the port on which it listens."""
    directory.mkdir()
    port, configuration = servers.free_port(), printed(proxy, way)
    places = {
        "/etc/ssl/files.example.pem": str(certified.certificate),
        "/etc/ssl/private/files.example.key": str(certified.key),
        "127.0.0.1:8000": f"127.0.0.1:{upstream_port}",
    }
    places |= {"listen 443": f"listen {port}"} if proxy == "nginx" else {f"{HOST} {{": f"https://{HOST}:{port} {{"}
    for usual, here in places.items():
        assert usual in configuration
        configuration = configuration.replace(usual, here)
    command = _nginx(directory, configuration) if proxy == "nginx" else _caddy(directory, configuration)
    with _running(proxy, command, directory, port):
        yield port


@contextmanager
def running_nginx(configuration: str, directory: Path) -> Iterator[int]:
    """nginx with what belongs into `http` beside a server that has `listen PORT`; the port."""
    directory.mkdir()
    port = servers.free_port()
    with _running("nginx", _nginx(directory, configuration.replace("PORT", str(port))), directory, port):
        yield port


@contextmanager
def _running(proxy: str, command: list[str], directory: Path, port: int) -> Iterator[None]:
    environment = os.environ | dict.fromkeys(("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME"), str(directory))
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [str(program_of(proxy)), *command], env=environment, stdout=log, stderr=log, preexec_fn=end_with_parent
        )
    try:
        wait_for(lambda: servers.accepts(port) or process.poll() is not None)
        assert process.poll() is None, (directory / "log").read_text()
        yield
    finally:
        process.kill()
        process.wait()


def _nginx(directory: Path, configuration: str) -> list[str]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    places = "".join(f"{kind}_temp_path {directory / kind};\n" for kind in kinds)
    around = "daemon off;\nmaster_process off;\npid pid;\nerror_log stderr;\nevents {}\n"
    (directory / "conf").write_text(f"{around}http {{\naccess_log off;\n{places}{configuration}}}\n")
    return ["-p", str(directory), "-e", "stderr", "-c", str(directory / "conf")]


def _caddy(directory: Path, configuration: str) -> list[str]:
    (directory / "conf").write_text(f"{{\nadmin off\nauto_https disable_redirects\n}}\n{configuration}")
    return ["run", "--adapter", "caddyfile", "--config", str(directory / "conf")]
