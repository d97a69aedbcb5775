"""What `serve` prints once it answers: where the page is, what to sign in with, what to read."""

import http.client
import socket
import ssl
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import click

from uploader import __version__
from uploader.settings import Settings

_LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
# Of documents (RFC 5737, RFC 3849): whoever sends there goes by the way to everybody.
_ANYWHERE = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
_DISCARD_PORT = 9


def announce(settings: Settings, host: str, port: int, token: str | None) -> None:
    """When the server answers at the address that it is bound to, say what to do next.

    The token itself is for terminals only: elsewhere output is kept.
    """
    reachable = _LOOPBACK.get(host, host)
    scheme = "http" if settings.tls_certificate is None else "https"
    _wait_until_live(scheme, reachable, port)
    where = f"all addresses, port {port}" if host in _LOOPBACK else _url(scheme, host, port)
    click.echo(f"uploader {__version__} listens on {where}, data in {settings.data.absolute()}")
    for line in _lines(settings, _url(scheme, reachable, port), token):
        click.echo(line)
    for name in _names_elsewhere(host):
        click.echo(f"  From elsewhere:     {_url(scheme, name, port)}/")
    sys.stdout.flush()


def _lines(settings: Settings, url: str, token: str | None) -> Iterator[str]:
    if settings.web_pages:
        yield f"  Web page:           {url}/"
        yield f"  Administration:     {url}/admin/"
    yield f"  API documentation:  {url}/docs"
    yield from _how_to_call(settings, url, token)


def _how_to_call(settings: Settings, url: str, token: str | None) -> Iterator[str]:
    if settings.auth == "none":
        yield f"  Try:                curl {url}/me/usage"
    elif settings.auth == "jwt":
        yield "  Tokens:             JWTs, as the UPLOADER_JWT settings have it"
    elif token is None:
        yield "  Make a token:       uploader token create USER"
    else:
        path = settings.data.absolute() / "owner.token"
        shown = sys.stdout.isatty()
        yield f"  Your token:         in {path} (user owner)"
        if shown and settings.web_pages:
            yield f"  Sign in with it:    {url}/#token={token}"
        bearer = token if shown else f"$(cat {path})"
        yield f'  Try:                curl -H "Authorization: Bearer {bearer}" {url}/me/usage'


def _wait_until_live(scheme: str, host: str, port: int) -> None:
    while True:
        try:
            connection = _connection(scheme, host, port)
            connection.request("GET", "/livez")
            if connection.getresponse().status == 200:
                return
        except OSError:
            time.sleep(0.02)


def _connection(scheme: str, host: str, port: int) -> http.client.HTTPConnection:
    if scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=1)
    context = ssl.create_default_context()
    # It is this very process that is asked, by an address that its certificate need not name.
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return http.client.HTTPSConnection(host, port, timeout=1, context=context)


def _url(scheme: str, host: str, port: int) -> str:
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _names_elsewhere(host: str) -> list[str]:
    """What other machines may call this one, where it listens on all its addresses: its name, if that leads to one of them,
    and the addresses."""
    families = {"0.0.0.0": [socket.AF_INET], "::": [socket.AF_INET6, socket.AF_INET]}.get(host, [])  # noqa: S104
    addresses = [address for family in families for address in outward_address(family)]
    name = socket.gethostname()
    with suppress(OSError):
        if {found[4][0] for found in socket.getaddrinfo(name, None)} & set(addresses):
            return [name, *addresses]
    return addresses


def outward_address(family: socket.AddressFamily) -> list[str]:
    """The address that this machine has for others: the one it would send from. Nothing is sent."""
    with suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((_ANYWHERE[family], _DISCARD_PORT))
        return [probe.getsockname()[0]]
    return []
