"""What a person reads where a proxy, the environment or the disk is between the client and the server."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from tests.support.commands import Commands
from tests.support.lying import lying

HTML = {"Content-Type": "text/html"}
NOBODY = "http://127.0.0.1:1"
AWAY = ": a proxy is there, and does not reach the server"


class Case(NamedTuple):
    """`says`: a part of the one line that is printed; `{url}` is the server's."""

    says: str
    code: int
    status: int = 200
    body: bytes = b""
    environment: Mapping[str, str] = {}


def passing(status: int, reason: str = "", more: str = "") -> Case:
    return Case(f"{{url}} answers {status} {reason}".rstrip() + more + " [unavailable]", 5, status)


def through(proxy: str, says: str, code: int, variable: str = "HTTP_PROXY") -> Case:
    return Case(says, code, environment={variable: proxy, "NO_PROXY": "", "no_proxy": ""})


LARGE_HEAD = "a proxy before {url} takes no requests with so large a head: "
CASES = {
    "413": Case("a proxy before {url} limits bodies to less than", 6, 413),
    "431": Case(LARGE_HEAD + "431 Request Header Fields Too Large; the token has 5 characters [bad", 6, 431),
    "400 of nginx": Case(LARGE_HEAD, 6, 400, b"<h1>400 Bad Request</h1>Request Header Or Cookie Too Large"),
    "407": Case("a proxy before {url} asks for a user and a password: 407 ", 6, 407),
    "404": Case("404 Not Found: is {url} an upload server? [bad-answer]", 6, 404),
    "500": passing(500, "Internal Server Error"),
    "501": passing(501, "Not Implemented"),
    "502": passing(502, "Bad Gateway", AWAY),
    "503": passing(503, "Service Unavailable"),
    "504": passing(504, "Gateway Timeout", AWAY),
    **{str(status): passing(status, more=AWAY) for status in range(520, 528)},
    "599": passing(599),
    "refused": Case(
        "refuses connections: does the server run, and is the port right?", 5, environment={"UPLOADER_URL": NOBODY}
    ),
    "port": Case("is not a URL such as https://", 2, environment={"UPLOADER_URL": "http://127.0.0.1:99999"}),
    "proxy down": through(NOBODY, f"the proxy {NOBODY}, which the environment names, can't be reached", 5),
    "proxy unknown": through(
        "http://user:secret@proxy.invalid:1", "the proxy http://user:***@proxy.invalid:1, which", 5
    ),
    "proxy of SOCKS": through(
        "socks5h://127.0.0.1:1", "for SOCKS the package socksio has to be installed", 2, "ALL_PROXY"
    ),
    "proxy no URL": through("http://[::1", "HTTP_PROXY is 'http://[::1', which is not a URL: ", 2),
    "proxy scheme": through(
        "ftp://a", "HTTP_PROXY is 'ftp://a', which is not a URL such as http://proxy.example:3128", 2
    ),
    "proxy port": through("127.0.0.1:99999", "HTTP_PROXY is '127.0.0.1:99999', which is not a URL such as", 2),
}


def test_each_answer_of_a_proxy_and_each_wrong_proxy_is_one_clear_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"content")
    asked: list[str] = []
    read = {}
    for name, case in CASES.items():

        def reply(target: str, case: Case = case) -> tuple[int, dict[str, str], list[bytes]]:
            asked.append(target)
            return case.status, HTML, [case.body]

        asked.clear()
        with lying(says=reply) as liar:
            commands = Commands(tmp_path, liar.url, "token")
            commands.environment |= case.environment
            run = commands.run("put", "file", "--patience", "300ms", "--quiet")
        says = case.says.format(url=liar.url)
        read[name] = (run.returncode, run.stdout + run.stderr)
        assert says in run.stderr and run.stderr.count("\n") == 1 and len(run.stderr) < 300, (name, says, read[name])
        assert run.returncode == case.code, (name, read[name])
        assert (len(asked) > len(set(asked))) == (case.status >= 500), (name, asked)
    print(*(f"{name} | {text.strip()} | {code}" for name, (code, text) in read.items()), sep="\n")
