"""Uppy with its dashboard, as docs/clients.md sets it up, alone and beside <uploader-drop>, in Chromium."""

from pathlib import Path

from playwright.async_api import Locator, expect

from tests.clients.site import Person
from tests.support.content import MIB, Content

CONTENTS = [Content(5 * MIB + 7, seed=193, name="holiday.mp4"), Content(1234, seed=194, name="böse.txt")]
LARGE = CONTENTS[0]

# Whether Golden Retriever has written down where the upload is.
IS_KEPT = """new Promise((resolve) => {
  const opening = indexedDB.open("uppy-blobs");
  opening.onsuccess = () => {
    const reading = opening.result.transaction("metadata").objectStore("metadata").getAll();
    reading.onsuccess = () => resolve(JSON.stringify(reading.result).includes("uploadUrl"));
  };
})"""


async def show(person: Person, chunk_size: int | None = None) -> None:
    """The dashboard of the document; its Tus with shorter requests, where a test has to come between them."""
    await person.page.evaluate(
        """(chunkSize) => {
            window.uppy = dashboard("#uppy", token);
            if (chunkSize) uppy.getPlugin("Tus").setOptions({ chunkSize });
        }""",
        chunk_size,
    )
    await expect(person.page.locator(".uppy-Dashboard-inner")).to_be_visible()


async def add(person: Person, *contents: Content, directory: Path) -> None:
    """Choose files as the dashboard lets one, and press its button."""
    for content in contents:
        (directory / content.name).write_bytes(content.data)
    chooser = person.page.locator("#uppy input[type=file]").first
    await chooser.set_input_files([directory / content.name for content in contents])
    await person.page.get_by_role("button", name="Upload ").click()


async def add_and_hold(person: Person, sent: int, directory: Path) -> None:
    """Add the large file, in requests of a MiB, and hold them once so many were sent."""
    await show(person, chunk_size=MIB)
    await person.allow(sent)
    await add(person, LARGE, directory=directory)
    await person.holds(1)


async def says(person: Person, text: str) -> None:
    await expect(person.page.locator(".uppy-StatusBar")).to_contain_text(text)


async def completed(person: Person, *contents: Content) -> None:
    await says(person, "Complete")
    assert person.sha256s() == sha256s(*contents or (LARGE,))


def sha256s(*contents: Content) -> dict[str, str]:
    return {content.name: content.sha256 for content in contents}


async def test_files_arrive_as_they_were(person: Person, tmp_path: Path) -> None:
    await show(person)
    await add(person, *CONTENTS, directory=tmp_path)
    await completed(person, *CONTENTS)


async def test_a_folder_that_is_dropped_is_a_folder_on_the_server(person: Person, tmp_path: Path) -> None:
    folder = tmp_path / "photos" / "2026"
    folder.mkdir(parents=True)
    for content in CONTENTS:
        (folder / content.name).write_bytes(content.data)
    await show(person)
    zone = await person.page.locator(".uppy-Dashboard-inner").bounding_box()
    assert zone is not None
    session = await person.page.context.new_cdp_session(person.page)
    data = {"items": [], "files": [str(folder.parent)], "dragOperationsMask": 1}
    for kind in ("dragEnter", "dragOver", "drop"):
        await session.send(
            "Input.dispatchDragEvent", {"type": kind, "x": zone["x"] + 200, "y": zone["y"] + 200, "data": data}
        )
    await person.page.get_by_role("button", name="Upload 2 files").click()
    await says(person, "Complete")
    assert person.sha256s() == {f"photos/2026/{content.name}": content.sha256 for content in CONTENTS}


async def test_after_a_reload_it_has_the_files_again_and_goes_on_where_it_was(person: Person, tmp_path: Path) -> None:
    """By Golden Retriever."""
    await add_and_hold(person, 3, tmp_path)
    await person.until("uppy.getFiles()[0].tus?.uploadUrl")
    await person.until(IS_KEPT)
    await person.open()
    await show(person)
    await (
        person.page.get_by_role("button", name="Resume").or_(person.page.get_by_role("button", name="Upload ")).click()
    )
    await completed(person)
    assert await person.offsets() == [3 * MIB]


async def test_a_network_that_is_cut_and_returns_only_costs_time(person: Person, tmp_path: Path) -> None:
    """Uppy goes on by itself once the browser says that there is one."""
    await add_and_hold(person, 2, tmp_path)
    await person.page.context.set_offline(True)
    await person.allow()
    await person.until("gate.requests.some(({ status }) => status === 0)")
    await person.page.context.set_offline(False)
    await completed(person)
    assert (await person.offsets()).count(0) == 1


async def test_what_the_quota_has_no_room_for_is_told(person: Person, tmp_path: Path) -> None:
    too_much = Content(33 * MIB, name="too much")
    await show(person)
    await add(person, too_much, CONTENTS[1], directory=tmp_path)
    await says(person, "Upload failed")
    await person.arrived(sha256s(CONTENTS[1]))
    assert sorted(status for status in await person.statuses() if status[0] == "POST") == [("POST", 201), ("POST", 413)]


# Appended, where the tests of the element replace all that the page has.
SHOW_ELEMENT = """async () => {
  await import(`${serverUrl}/drop.js`);
  const drop = document.createElement("uploader-drop");
  drop.setAttribute("server", serverUrl);
  drop.token = token;
  document.body.append(drop);
}"""


async def show_beside(person: Person) -> Locator:
    await show(person)
    await person.page.evaluate(SHOW_ELEMENT)
    return person.page.locator("uploader-drop")


async def choose(drop: Locator, content: Content, directory: Path) -> None:
    (directory / content.name).write_bytes(content.data)
    await drop.locator("input").set_input_files(directory / content.name)
    await expect(drop.locator('li[data-state="complete"]')).to_contain_text(content.name)
    await expect(drop.locator("li")).to_have_count(1)


async def test_the_element_uploads_beside_it(person: Person, tmp_path: Path) -> None:
    drop = await show_beside(person)
    await person.allow(0)
    await add(person, LARGE, directory=tmp_path)
    await person.holds(1)
    await choose(drop, CONTENTS[1], tmp_path)
    await person.allow()
    await completed(person, *CONTENTS)


async def test_the_element_goes_on_with_what_it_began(person: Person, tmp_path: Path) -> None:
    await add_and_hold(person, 3, tmp_path)
    await person.until("uppy.getFiles()[0].tus?.uploadUrl")
    await person.open()
    drop = await show_beside(person)
    await expect(drop.locator('li[data-state="unfinished"]')).to_contain_text(LARGE.name)
    await choose(drop, LARGE, tmp_path)
    assert person.sha256s() == sha256s(LARGE)
    person.check_nothing_is_held()
