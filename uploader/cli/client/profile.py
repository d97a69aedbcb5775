"""Which server the client commands talk to, and as whom: from the environment, or from what `uploader login` kept."""

import ipaddress
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

# Where `uploader serve` listens if nothing else is said.
DEFAULT_URL = "http://127.0.0.1:8000"


@dataclass(frozen=True, slots=True)
class Profile:
    """A server and a token; no token for a server that asks for none."""

    url: str
    token: str | None

    @property
    def is_readable_on_the_way(self) -> bool:
        """Whether the token goes to another machine without TLS. Raises ValueError if the URL is none."""
        parts = urlsplit(self.url)
        return self.token is not None and parts.scheme == "http" and not _is_this_machine(parts.hostname or "")


def profile_of_link(link: str) -> Profile | None:
    """What a link that signs in names (`/#token=…` or `/admin/#token=…`); None for a URL without a token."""
    url, _, fragment = link.partition("#")
    tokens = parse_qs(fragment).get("token")
    return Profile(url.rstrip("/").removesuffix("/admin"), tokens[0]) if tokens else None


def profile_path(environment: Mapping[str, str]) -> Path:
    """Where `login` keeps it (XDG Base Directory Specification: a relative directory is ignored)."""
    configured = Path(environment.get("XDG_CONFIG_HOME") or "")
    directory = configured if configured.is_absolute() else Path.home() / ".config"
    return directory / "uploader" / "client.toml"


def load_profile(environment: Mapping[str, str] | None = None) -> Profile | None:
    """`UPLOADER_URL` and `UPLOADER_TOKEN` go before the file. None where neither names a server. Raises ValueError, saying
    what is wrong with the file.

    A kept token is for the server it was kept with, and is never shown to another one.
    """
    environment = os.environ if environment is None else environment
    kept = _read(profile_path(environment))
    url = environment.get("UPLOADER_URL") or kept.get("url")
    if not url:
        return None
    token = environment.get("UPLOADER_TOKEN")
    if not token and url.rstrip("/") == kept.get("url", "").rstrip("/"):
        token = kept.get("token")
    return Profile(url, token or None)


def save_profile(profile: Profile, environment: Mapping[str, str] | None = None) -> Path:
    """Keep it, readable by nobody else. Raises OSError."""
    path = profile_path(os.environ if environment is None else environment)
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    members = {"url": profile.url, "token": profile.token}
    # A JSON string is a TOML string, too.
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}\n" for name, value in members.items() if value]
    new = path.with_suffix(".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.writelines(lines)
    new.replace(path)
    return path


def _is_this_machine(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def _read(path: Path) -> dict[str, str]:
    try:
        kept = tomllib.loads(path.read_text())
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ValueError(f"{path} can't be read: {error}") from error
    return {name: value for name, value in kept.items() if isinstance(value, str)}
