"""The web pages as a browser gets them: complete, under a strict policy, renewed by an upgrade, and off by a setting."""

import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import MakeStack
from tests.support.problems import problem
from tests.support.stack import Stack

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "uploader" / "web"
PARTS = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.glob("pages/**/*.*") if path.suffix != ".html")
MODULES = [name for name in PARTS if name.endswith(".js")]
PAGES = ["/", "/admin/"]


@pytest.mark.parametrize("page", PAGES)
async def test_a_page_loads_nothing_from_elsewhere_and_nothing_inline(stack: Stack, page: str) -> None:
    anonymous = stack.anonymous()
    answer = await anonymous.get(page)
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert not re.search(r"<style|\bstyle=|\son\w+=|javascript:|<script(?![^>]*\bsrc=)|https?://", answer.text)
    parts = re.findall(r'(?:src|href)="(/static/[^"]+)"', answer.text)
    assert len(parts) >= 4
    for part in parts:
        assert (await anonymous.get(part)).status_code == 200


@pytest.mark.parametrize("page", PAGES)
async def test_the_policy_of_a_page_allows_what_the_server_serves_and_no_more(stack: Stack, page: str) -> None:
    policy = (await stack.anonymous().get(page)).headers["content-security-policy"]
    directives = dict(directive.split(" ", 1) for directive in policy.split("; "))
    assert directives.pop("default-src") == "'none'"
    assert {directives.pop(name) for name in ("frame-ancestors", "base-uri", "form-action")} == {"'none'"}
    assert set(directives.values()) == {"'self'"}


async def test_only_the_worker_that_hashes_may_compile_web_assembly(stack: Stack) -> None:
    anonymous = stack.anonymous()
    policies = {name: (await anonymous.get(f"/static/{name}")).headers["content-security-policy"] for name in PARTS}
    assert [name for name, policy in policies.items() if "wasm" in policy] == ["pages/upload/hash-worker.js"]
    assert "connect-src" not in policies["pages/upload/hash-worker.js"]


@pytest.mark.parametrize("name", MODULES)
async def test_a_module_imports_only_what_is_served(stack: Stack, name: str) -> None:
    source = (STATIC / name).read_text()
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", source)
    assert len(source.splitlines()) < 400
    for imported in re.findall(r'^(?:import|export) [^"\n]*"([^"]+)";', source, flags=re.MULTILINE):
        assert imported.startswith(("./", "../"))
        part = (STATIC / name).parent.joinpath(imported).resolve().relative_to(STATIC)
        assert (await stack.anonymous().get(f"/static/{part}")).status_code == 200


async def test_a_browser_that_has_a_part_is_not_sent_it_again(stack: Stack) -> None:
    anonymous = stack.anonymous()
    for path in ("/", "/static/pages/ui.css"):
        first = await anonymous.get(path)
        assert first.headers["cache-control"] == "no-cache"
        again = await anonymous.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        other = await anonymous.get(path, headers={"If-None-Match": '"another"'})
        assert (other.status_code, other.content) == (200, first.content)


async def test_a_page_is_no_part_of_itself(stack: Stack) -> None:
    """It would be there under another policy."""
    problem(await stack.anonymous().get("/static/pages/upload/index.html"), 404, "not-found")


async def test_switched_off_the_start_leads_to_the_documentation(make_stack: MakeStack) -> None:
    async with make_stack(web_pages=False) as stack:
        anonymous = stack.anonymous()
        answer = await anonymous.get("/")
        assert (answer.status_code, answer.headers["location"]) == (307, "/docs")
        for path in ("/admin/", "/static/pages/ui.css"):
            problem(await anonymous.get(path), 404, "not-found")
        assert (await anonymous.get("/static/docs.js")).status_code == 200


def test_the_wheel_carries_every_part_and_every_licence(tmp_path: Path) -> None:
    build = [sys.executable, "-c", "import sys; from hatchling.builders.wheel import WheelBuilder;"]
    build[-1] += "next(WheelBuilder(sys.argv[1]).build(directory=sys.argv[2], versions=['standard']))"
    subprocess.run([*build, str(ROOT), str(tmp_path)], check=True, capture_output=True)
    [wheel] = tmp_path.glob("*.whl")
    carried = set(zipfile.ZipFile(wheel).namelist())
    expected = {path.relative_to(ROOT).as_posix() for path in STATIC.rglob("*") if path.is_file()}
    assert expected <= carried
    assert {f"{path.parent.name}/{path.name}" for path in STATIC.rglob("LICENSE")} <= {
        "/".join(name.split("/")[-2:]) for name in carried if ".dist-info/licenses/" in name
    }
