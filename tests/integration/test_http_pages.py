"""The web pages as a browser gets them: complete, under a strict policy, renewed by an upgrade, and off by a setting."""

import re
from pathlib import Path
from urllib.parse import urljoin

from tests.conftest import MakeStack
from tests.support.problems import problem
from tests.support.stack import Stack

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "uploader" / "web"
PARTS = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.glob("pages/**/*.*") if path.suffix != ".html")
MODULES = [name for name in PARTS if name.endswith(".js")]
APPLICATION = "https://app.example"


def imports_of(source: str) -> list[str]:
    return re.findall(r'^(?:import|export) [^"=\n]*"([^"]+)";', source, flags=re.MULTILINE)


async def test_a_page_loads_nothing_from_elsewhere_and_nothing_inline(stack: Stack) -> None:
    anonymous, link = stack.anonymous(), await _link(stack)
    for page, nowhere in (("/", set[str]()), ("/admin/", {"form-action"}), (link, {"form-action"})):
        answer = await anonymous.get(page)
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
        assert not re.search(r"<style|\bstyle=|\son\w+=|javascript:|<script(?![^>]*\bsrc=)|https?://", answer.text)
        parts = re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)
        assert len(parts) >= 4
        for part in parts:
            assert (await anonymous.get(part)).status_code == 200
        policy = answer.headers["content-security-policy"]
        directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
        nowhere |= {"default-src", "frame-ancestors", "base-uri"}
        assert {directives.pop(name) for name in nowhere} == {"'none'"}
        assert set(directives.values()) == {"'self'"}


async def _link(stack: Stack) -> str:
    made = await stack.client.post("/me/links", json={"kind": "upload", "name": "inbox/", "label": "secret"})
    return str(made.json()["url"])


async def test_the_page_of_a_link_tells_a_preview_nothing_and_has_the_status_of_the_link(stack: Stack) -> None:
    link, browser = await _link(stack), {"Accept": "text/html,*/*"}
    pages = [await stack.anonymous().get(path, headers=browser) for path in (link, f"{link}x")]
    assert [page.status_code for page in pages] == [200, 404]
    assert pages[0].content == pages[1].content
    assert "og:title" in pages[0].text
    assert not re.search("secret|inbox", pages[0].text)
    assert {pages[0].headers[name] for name in ("referrer-policy", "x-robots-tag")} == {"no-referrer", "noindex"}
    problem(await stack.anonymous().get(f"{link}x"), 404, "link-not-found")
    facts = await stack.anonymous().get(link, headers={"Accept": "application/json"})
    assert facts.json()["label"] == "secret"


async def test_the_scripts_of_a_link_are_small(stack: Stack) -> None:
    """All that a browser loads to send files, with the worker that hashes, as it is on its way."""
    left = [
        f"/static/pages/{name}" for name in ("early.js", "link/main.js", "link/collect.js", "client/hash-worker.js")
    ]
    seen: dict[str, int] = {}
    while left:
        path = left.pop()
        answer = await stack.anonymous().get(path, headers={"Accept-Encoding": "gzip"})
        seen[path] = answer.num_bytes_downloaded
        left += [part for part in (urljoin(path, each) for each in imports_of(answer.text)) if part not in seen]
    assert len(seen) > 40
    assert sum(seen.values()) < 60_000


async def test_a_part_is_packed_for_who_takes_that(stack: Stack) -> None:
    """It has another ETag then, as its bytes are others; and lacks no line of code."""
    path = "/static/pages/client/transfers.js"
    taken = {}
    for accepted in ("gzip, br", "identity", "gzip;q=0", "GZIP; q=0.5"):
        answer = await stack.anonymous().get(path, headers={"Accept-Encoding": accepted})
        taken[accepted] = answer.headers.get("content-encoding"), answer.headers["etag"], answer.text
        assert "Accept-Encoding" in answer.headers["vary"]
        again = await stack.anonymous().get(
            path, headers={"Accept-Encoding": accepted, "If-None-Match": taken[accepted][1]}
        )
        assert (again.status_code, again.content) == (304, b"")
    assert [encoding for encoding, _, _ in taken.values()] == ["gzip", None, None, "gzip"]
    assert len({etag for _, etag, _ in taken.values()}) == 2
    assert {text for _, _, text in taken.values()} == {taken["identity"][2]}
    code = [line.strip() for line in (STATIC / "pages/client/transfers.js").read_text().splitlines()]
    kept = [without_comment(line) for line in code if line and not line.startswith(("//", "/*", "* "))]
    assert [line for line in taken["identity"][2].splitlines() if line] == kept


def without_comment(line: str) -> str:
    """A comment with a quote might be a part of a text."""
    code, _, comment = line.partition(" // ")
    return line if set("\"'`") & set(comment) else code


def test_no_text_of_a_module_goes_over_lines() -> None:
    """Their indentation is left out, and what begins like a comment."""
    for name in MODULES:
        for line in (STATIC / name).read_text().splitlines():
            assert line.count("`") % 2 == 0, (name, line)


async def test_only_the_worker_that_hashes_may_compile_web_assembly(stack: Stack) -> None:
    anonymous = stack.anonymous()
    policies = {name: (await anonymous.get(f"/static/{name}")).headers["content-security-policy"] for name in PARTS}
    assert [name for name, policy in policies.items() if "wasm" in policy] == ["pages/client/hash-worker.js"]
    assert "connect-src" not in policies["pages/client/hash-worker.js"]


async def test_a_module_imports_only_what_is_served(stack: Stack) -> None:
    for name in MODULES:
        source = (STATIC / name).read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source)
        assert len(source.splitlines()) < 400, name
        for imported in imports_of(source):
            assert imported.startswith(("./", "../"))
            part = (STATIC / name).parent.joinpath(imported).resolve().relative_to(STATIC)
            assert (await stack.anonymous().get(f"/static/{part}")).status_code == 200, name


async def test_a_browser_that_has_a_part_is_not_sent_it_again(stack: Stack) -> None:
    anonymous = stack.anonymous()
    for path in ("/", "/static/pages/ui.css"):
        first = await anonymous.get(path)
        assert first.headers["cache-control"] == "no-cache"
        again = await anonymous.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await anonymous.get(path, headers={"If-None-Match": '"another"', "If-Match": first.headers["etag"]})
        assert (other.status_code, other.content) == (200, first.content)
        refused = await anonymous.get(path, headers={"If-Match": f'"another", W/{first.headers["etag"]}'})
        problem(refused, 412, "precondition-failed")


async def test_what_has_an_address_of_its_own_is_no_part(stack: Stack) -> None:
    """A page would be there under another policy, and what the client imports would be elsewhere."""
    for name in ("pages/home/index.html", "client.js", "client.d.ts", "drop.js", "drop.d.ts"):
        problem(await stack.anonymous().get(f"/static/{name}"), 404, "not-found")


async def test_pages_of_allowed_origins_may_import_the_client_and_all_its_modules(make_stack: MakeStack) -> None:
    async with make_stack(cors_origins=(APPLICATION,), web_pages=False) as stack:
        seen: set[str] = set()
        left = ["/client.js", "/drop.js", "/static/pages/client/hash-worker.js"]
        while left:
            path = left.pop()
            seen.add(path)
            answer = await stack.anonymous().get(path, headers={"Origin": APPLICATION})
            assert (answer.status_code, answer.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
            assert answer.headers["access-control-allow-origin"] == APPLICATION
            assert answer.headers["x-content-type-options"] == "nosniff"
            again = {"Origin": APPLICATION, "If-None-Match": answer.headers["etag"]}
            renewed = await stack.anonymous().get(path, headers=again)
            assert (renewed.status_code, renewed.headers["cache-control"]) == (304, "no-cache")
            assert renewed.headers["access-control-allow-origin"] == APPLICATION
            left += [part for part in (urljoin(path, each) for each in imports_of(answer.text)) if part not in seen]
        assert len(seen) > 15
        types = await stack.anonymous().get("/client.d.ts")
        assert types.headers["content-type"] == "text/plain; charset=utf-8"
        assert "export class Client" in types.text


async def test_switched_off_the_start_leads_to_the_documentation(make_stack: MakeStack) -> None:
    async with make_stack(web_pages=False) as stack:
        anonymous = stack.anonymous()
        answer = await anonymous.get("/")
        assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
        for path in ("/admin/", "/static/pages/ui.css"):
            problem(await anonymous.get(path), 404, "not-found")
        assert (await anonymous.get("/static/docs.js")).status_code == 200
        assert (await anonymous.get(await _link(stack), headers={"Accept": "text/html"})).json()["kind"] == "upload"
