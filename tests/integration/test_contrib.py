"""Finished files in Django and FastAPI: a storage, a form field, a dependency, of a server that is a part of the process."""

import asyncio
import io
import pathlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Annotated, Any

import httpx2
import pytest
from asgiref.sync import sync_to_async
from django import forms
from django.core.exceptions import ImproperlyConfigured
from django.core.files.base import ContentFile
from django.core.files.uploadedfile import TemporaryUploadedFile
from django.db import models
from django.test.utils import override_settings
from django.utils import translation
from fastapi import Body, FastAPI, Form, Header, Path, Query, Request

from tests.support.consumer import asked_of, consuming, events_file
from tests.support.hosting import CONTENT, PREFIX, MakeUploader, configure_django, living, send_file
from uploader.asgi import FileHeld, FileNotFound, Uploader, UploadUnfinished
from uploader.client import ClientError, InvalidName, QuotaExceeded
from uploader.contrib.django import FinishedFile, UploaderStorage, UploadField, UploadInput
from uploader.contrib.fastapi import File, finished_file, finished_files

NOBODYS = "0" * 32


@pytest.fixture
async def client(uploads: Uploader) -> AsyncIterator[httpx2.AsyncClient]:
    async with living(uploads) as client:
        yield client


@pytest.fixture
def uploads(make_uploader: MakeUploader, request: pytest.FixtureRequest) -> Uploader:
    return make_uploader(**getattr(request, "param", {}))


@pytest.fixture
def storage(uploads: Uploader) -> UploaderStorage:
    configure_django()
    return UploaderStorage(uploads, PREFIX)


async def begin(client: httpx2.AsyncClient) -> str:
    """Open an upload, and send nothing."""
    opened = await client.post("/uploads", json={"name": "begun", "size": CONTENT.size})
    return str(opened.json()["upload"]["id"])


# In process


async def test_a_file_is_found_by_its_id_and_by_that_of_its_upload(
    client: httpx2.AsyncClient, uploads: Uploader
) -> None:
    opening = {"name": "a", "size": CONTENT.size, "chunk_size": CONTENT.chunk_size}
    upload_id = (await client.post("/uploads", json=opening)).json()["upload"]["id"]
    with pytest.raises(UploadUnfinished):
        await uploads.files.find("alice", upload_id)
    for number in range(CONTENT.chunk_count):
        answer = await client.put(f"/uploads/{upload_id}/chunks/{number}", content=CONTENT.chunk(number))
    file_id = answer.json()["file"]["id"]
    for told in (upload_id, file_id):
        assert (await uploads.files.find("alice", told)).id == file_id
    cancelled = await begin(client)
    await client.delete(f"/uploads/{cancelled}")
    for user_id, told in [
        ("bob", upload_id), ("bob", file_id), ("alice", cancelled),
        *(("alice", odd) for odd in (NOBODYS, "", "a", file_id.upper(), "\0" * 32, "\ud800", "x" * 100_000)),
    ]:  # fmt: skip
        with pytest.raises(FileNotFound):
            await uploads.files.find(user_id, told)


@pytest.mark.parametrize(
    "uploads", [{}, {"public_url": "https://files.example/store"}], indirect=True, ids=["", "below"]
)
async def test_the_application_uploads_lists_links_and_deletes_as_a_user(
    client: httpx2.AsyncClient, uploads: Uploader
) -> None:
    files = uploads.files
    large = CONTENT.data * 60  # more than goes whole
    made = {name: await files.upload("alice", data, name) for name, data in (("f/a", b"a"), ("f/g/b", large))}
    assert (await files.upload("alice", io.BytesIO(b"b"), "f/a")).name == "f/a (2)"
    page, after = await files.level("alice", "f/")
    assert ([found.name for found in page], after) == (["f/a", "f/a (2)", "f/g/"], None)
    assert await files.named("alice", "f/g/b") == made["f/g/b"]
    assert [await files.named(*of) for of in (("bob", "f/a"), ("alice", "f"), ("alice", "../a"))] == [None] * 3
    linked = await client.get(await files.link(made["f/g/b"]), headers={"X-User": ""})
    assert linked.content == large
    assert (await client.get(f"/me/files/{made['f/a'].id}", headers={"X-User": "bob"})).status_code == 404
    with pytest.raises(FileNotFound):
        await files.delete("bob", made["f/a"].id)
    await files.delete("alice", made["f/a"].id)
    assert await files.named("alice", "f/a") is None
    for user_id, name, why in (("alice", "../a", InvalidName), ("a b", "c", ClientError)):
        with pytest.raises(why):
            await files.upload(user_id, b"c", name)


async def test_the_pre_create_hook_is_asked_about_what_the_application_uploads(
    make_uploader: MakeUploader, tmp_path: pathlib.Path
) -> None:
    async with consuming() as hook:
        hook.status = 403
        uploads = make_uploader(events=events_file(tmp_path / "e", asked_of(hook.url)))
        async with uploads.running():
            with pytest.raises(ClientError):
                await uploads.files.upload("alice", b"a", "a")
            assert await uploads.files.named("alice", "a") is None
    assert {(each["operation"], each["user_id"], each["name"]) for each in hook.events} == {("create", "alice", "a")}


async def test_what_a_gate_holds_is_not_given_out(make_uploader: MakeUploader, tmp_path: pathlib.Path) -> None:
    (tmp_path / "events.toml").write_text('[queues.scan]\ntypes = ["file.finished"]\ngate = true\n')
    uploads = make_uploader(events=tmp_path / "events.toml")
    configure_django()
    storage = UploaderStorage(uploads, PREFIX)
    app = FastAPI(lifespan=lambda _app: uploads.running())

    @app.get("/query")
    async def by_query(film: Annotated[File, finished_file(uploads, Query(alias="film"))]) -> str:
        return film.name

    @app.get("/films/{film}")
    async def by_path(film: Annotated[File, finished_file(uploads, Path(alias="film"))]) -> str:
        return film.name

    app.mount(PREFIX, uploads)
    async with living(app) as client:
        opened = await client.post(f"{PREFIX}/uploads", json={"name": "a", "size": 1})
        upload_id = opened.json()["upload"]["id"]
        sent = await client.put(f"{PREFIX}/uploads/{upload_id}/chunks/0", content=b"a")
        for told in (upload_id, sent.json()["file"]["id"]):
            with pytest.raises(FileHeld):
                await uploads.files.find("alice", told)
            form = film_form(storage, {"film": told})
            assert not await asyncio.to_thread(form.is_valid)
            assert form.errors["film"] == ["This file is being checked. Send the form again later."]
            assert (await client.get("/query", params={"film": told})).json()["detail"][0]["type"] == "file_held"
            assert (await client.get(f"/films/{told}")).status_code == 409
        assert (await uploads.files.upload("alice", b"b", "b")).held
        saved = await asyncio.to_thread(storage.save, "alice/c", ContentFile(b"c"))
        assert not await asyncio.to_thread(storage.exists, saved)


async def test_a_thread_waits_and_an_event_loop_does_not(make_uploader: MakeUploader) -> None:
    uploads = make_uploader()

    async def answer() -> int:
        return 42

    with pytest.raises(RuntimeError, match="does not run"):
        await asyncio.to_thread(uploads.wait, answer())
    async with uploads.running():
        assert await asyncio.to_thread(uploads.wait, answer()) == 42
        with pytest.raises(RuntimeError, match="an event loop can't wait"):
            uploads.wait(answer())


# Django


async def test_the_storage_reads_anywhere_in_bounded_memory(
    client: httpx2.AsyncClient, storage: UploaderStorage
) -> None:
    content = CONTENT.data * 20
    await storage.uploader.files.upload("alice", content, "films/a")

    def read() -> None:
        with storage.open("alice/films/a") as file:
            assert (file.size, len(file), file.name) == (len(content), len(content), "alice/films/a")
            assert b"".join(file.chunks()) == content
            for offset, whence, at in (
                (1_000_000, 0, 1_000_000),
                (-7, 2, len(content) - 7),
                (5, 0, 5),
                (10**7, 0, 10**7),
            ):
                assert file.seek(offset, whence) == at
                assert file.read(100) == content[at : at + 100]
            with pytest.raises(ValueError, match="before the first byte"):
                file.seek(-1)
            assert file.readable()
            assert not file.writable()
        assert file.closed
        with file.open():  # anew
            assert file.read() == content
        for mode in ("r", "wb"):
            with pytest.raises(ValueError, match=f"don't open as '{mode}'"):
                storage.open("alice/films/a", mode)

    await asyncio.to_thread(read)


async def test_a_storage_has_what_django_asks_for(client: httpx2.AsyncClient, storage: UploaderStorage) -> None:
    changed = datetime(2020, 2, 3, tzinfo=UTC)
    query = {"name": "films/a.mp4", "modified_at": changed.isoformat()}
    assert (await client.post("/me/files", params=query, content=b"film")).status_code == 201
    url = await asyncio.to_thread(storage.url, "alice/films/a.mp4")
    assert (await client.get(url.removeprefix(PREFIX), headers={"X-User": ""})).content == b"film"

    def use() -> None:
        name = "alice/films/a.mp4"
        facts = (storage.exists(name), storage.exists("bob/films/a.mp4"), storage.exists("films"), storage.size(name))
        assert facts == (True, False, False, 4)
        assert changed < storage.get_created_time(name) <= datetime.now(UTC)
        assert storage.get_modified_time(name) == changed
        with override_settings(USE_TZ=False):
            assert storage.get_modified_time(name).tzinfo is None
        assert storage.listdir("alice") == (["films"], [])
        assert storage.listdir("alice/films/") == ([], ["a.mp4"])
        assert storage.listdir("alice/nothing") == ([], [])
        assert not storage.exists("\ud800/a")
        with pytest.raises(NotImplementedError, match="lists no users"):
            storage.listdir("")
        for ask in (storage.size, storage.url, storage.open, storage.get_modified_time):
            with pytest.raises(FileNotFoundError):
                ask("alice/nothing")
        storage.delete("bob/films/a.mp4")
        assert storage.exists(name)
        storage.delete(name)
        storage.delete(name)
        assert not storage.exists(name)

    await asyncio.to_thread(use)


async def test_what_is_saved_is_uploaded_as_its_owner_would(
    client: httpx2.AsyncClient, storage: UploaderStorage
) -> None:
    def save() -> None:
        assert storage.save("alice/a.txt", ContentFile("zwölf")) == "alice/a.txt"
        assert storage.open("alice/a.txt").read() == "zwölf".encode()
        assert storage.save("alice/a.txt", ContentFile(b"other")).startswith("alice/a_")  # as Django names it
        with TemporaryUploadedFile("b", "video/mp4", CONTENT.size, None) as sent:
            sent.write(CONTENT.data)
            sent.read()  # its position counts for nothing
            assert storage.save("alice/b", sent) == "alice/b"
        assert storage.open("alice/b").read() == CONTENT.data
        # A finished file is there already, whatever it is to be called.
        assert storage.save("alice/copy", storage.open("alice/b")) == "alice/b"
        assert not storage.exists("alice/copy")
        with pytest.raises(ValueError, match="names no user"):
            storage.save("c", ContentFile(b"c"))

    await asyncio.to_thread(save)
    root = {"X-User": "root"}
    assert (await client.put("/admin/users/alice", json={"total_space": CONTENT.size}, headers=root)).is_success
    with pytest.raises(QuotaExceeded):
        await asyncio.to_thread(storage.save, "alice/d", ContentFile(b"x" * 1000))


async def test_a_field_of_a_model_takes_a_finished_file_without_copying_it(
    client: httpx2.AsyncClient, storage: UploaderStorage
) -> None:
    file = await send_file(client, "", "films/a b")

    class Film(models.Model):
        film = models.FileField(storage=storage, upload_to="elsewhere")

        class Meta:
            app_label = "films"

    def keep() -> None:
        form = film_form(storage, {"film": file["id"]})
        assert form.is_valid()
        film = Film(film=form.cleaned_data["film"])
        assert Film._meta.get_field("film").pre_save(film, add=True).name == "alice/films/a b"
        again = Film(film="alice/films/a b").film
        assert (again.size, again.read(), again.url[:9]) == (CONTENT.size, CONTENT.data, "/uploads/")

    await asyncio.to_thread(keep)
    usage = (await client.get("/me/usage")).json()
    assert usage["use_space_finished"] == CONTENT.size


async def test_django_is_told_what_is_wrong_with_its_settings(
    client: httpx2.AsyncClient, storage: UploaderStorage
) -> None:
    with pytest.raises(RuntimeError, match="an event loop can't wait"):
        storage.exists("alice/a")
    for wrong, why in (
        (UploaderStorage("tests.support.hosting.PREFIX", "/"), "is no Uploader"),
        (UploaderStorage(storage.uploader), "`base_url` has to say"),
    ):
        with pytest.raises(ImproperlyConfigured, match=why):
            _ = (wrong.base_url, wrong.uploader)
    with pytest.raises(ImproperlyConfigured, match="`user_id` has to say"):
        await asyncio.to_thread(UploadField(storage=storage).clean, [NOBODYS])


def film_form(storage: UploaderStorage, data: Any = None, *, user_id: str = "alice", **options: Any) -> forms.Form:
    class FilmForm(forms.Form):
        film = UploadField(storage=storage, to="films", **options)

    form = FilmForm(data)
    form.fields["film"].user_id = user_id
    return form


async def test_the_field_gives_a_finished_file_of_the_user(
    client: httpx2.AsyncClient, storage: UploaderStorage
) -> None:
    ids = [(await send_file(client, "", name))["id"] for name in ("a", "b")]
    begun = await begin(client)

    def check() -> None:
        form = film_form(storage, {"film": ids[0]})
        assert form.is_valid(), form.errors
        film = form.cleaned_data["film"]
        assert isinstance(film, FinishedFile)
        assert (film.id, film.name, film.size, film.stored.sha256) == (ids[0], "alice/a", CONTENT.size, CONTENT.sha256)
        assert film.open().read() == CONTENT.data
        assert film.url.startswith(f"{PREFIX}/me/files/{ids[0]}/content?user=")
        many = film_form(storage, {"film": [*ids, ids[0]]}, multiple=True)
        assert many.is_valid()
        assert [film.id for film in many.cleaned_data["film"]] == ids
        assert film_form(storage, {}, required=False).is_valid()
        assert film_form(storage, {"film": [begun, ids[1]]}).is_valid()  # the last one counts
        lost = "This file is not there, or is not yours. Upload it again."
        for told, user_id, why in (
            ({"film": ids[0]}, "bob", lost),
            ({"film": NOBODYS}, "alice", lost),
            ({"film": "' OR 1=1"}, "alice", lost),
            ({"film": begun}, "bob", lost),
            ({"film": begun}, "alice", "This upload is not finished. Wait until it is, and send the form again."),
            ({}, "alice", "This field is required."),
        ):
            assert film_form(storage, told, user_id=user_id).errors["film"] == [why]
        refused = film_form(storage, {"film": begun})
        with translation.override("zh-hans"):
            assert refused.errors["film"] == ["上传尚未完成。请等待完成后再提交表单。"]

    await asyncio.to_thread(check)
    assert await sync_to_async(film_form(storage, {"film": ids[0]}).is_valid)()  # of an asynchronous view


async def test_the_widget_is_the_element(client: httpx2.AsyncClient, storage: UploaderStorage) -> None:
    file = await send_file(client, "")

    def show() -> None:
        form = film_form(storage, attrs={"accept": "video/*"})
        assert str(form.media) == f'<script src="{PREFIX}/drop.js" type="module"></script>'
        assert str(form["film"]) == (
            '<uploader-drop accept="video/*" id="id_film" name="film" to="films" required></uploader-drop>'
        )
        # What was sent with a form that is shown again goes with it the next time, if it was found.
        again = str(film_form(storage, {"film": file["id"]}, multiple=True)["film"])
        assert again.startswith(f'<input type="hidden" name="film" value="{file["id"]}"><uploader-drop ')
        assert " multiple" in again
        assert " required" not in again
        refused = str(film_form(storage, {"film": ['"><script>']})["film"])
        assert refused.startswith("<uploader-drop ")
        assert " required" in refused
        kept = UploadInput(lambda: "").render("film", '"><script>')
        assert kept.startswith('<input type="hidden" name="film" value="&quot;&gt;&lt;script&gt;">')

    await asyncio.to_thread(show)


# FastAPI


@pytest.mark.parametrize("by_dependency", [False, True], ids=["by identify", "by a dependency"])
async def test_an_operation_is_given_files_of_the_user(make_uploader: MakeUploader, by_dependency: bool) -> None:
    def who(request: Request) -> str:
        return request.headers["x-user"]

    uploads = make_uploader()
    app = FastAPI(lifespan=lambda _app: uploads.running())
    user_id = who if by_dependency else None

    def of(source: Any) -> Any:
        return finished_file(uploads, source, user_id)

    @app.post("/form")
    async def by_form(film: Annotated[File, of(Form(alias="film"))], title: Annotated[str, Form()]) -> dict[str, Any]:
        return {"name": film.name, "title": title}

    @app.post("/json")
    async def by_json(film: Annotated[File, of(Body(alias="film", embed=True))]) -> dict[str, Any]:
        return {"name": film.name}

    @app.get("/query")
    async def by_query(film: Annotated[File, of(Query(alias="film"))]) -> dict[str, Any]:
        return {"name": film.name}

    @app.get("/header")
    async def by_header(film: Annotated[File, of(Header(alias="x-film"))]) -> dict[str, Any]:
        return {"name": film.name}

    @app.get("/films/{film}")
    async def by_path(film: Annotated[File, of(Path(alias="film"))]) -> dict[str, Any]:
        return {"name": film.name}

    @app.post("/films")
    async def many(films: Annotated[list[File], finished_files(uploads, Form(alias="film"), user_id)]) -> list[str]:
        return [film.name for film in films]

    app.mount(PREFIX, uploads)
    async with living(app) as client:
        ids = [(await send_file(client, PREFIX, name))["id"] for name in ("a", "b")]
        opened = await client.post(f"{PREFIX}/uploads", json={"name": "begun", "size": 1})
        begun = opened.json()["upload"]["id"]

        async def ask(path: str, told: str, user: str = "alice") -> httpx2.Response:
            headers = {"X-User": user}
            match path:
                case "form":
                    return await client.post("/form", data={"film": told, "title": "A"}, headers=headers)
                case "json":
                    return await client.post("/json", json={"film": told}, headers=headers)
                case "header":
                    return await client.get("/header", headers={"X-Film": told, **headers})
                case "query":
                    return await client.get("/query", params={"film": told}, headers=headers)
            return await client.get(f"/films/{told}", headers=headers)

        places = {"form": "body", "json": "body", "header": "header", "query": "query", "path": "path"}
        for path, place in places.items():
            assert (await ask(path, ids[0])).json()["name"] == "a"
            for told, user, kind, words in (
                (ids[0], "bob", "file_not_found", "You have no such file."),
                (NOBODYS, "alice", "file_not_found", "You have no such file."),
                (begun, "alice", "upload_unfinished", "This upload is not finished."),
            ):
                refused = await ask(path, told, user)
                if path == "path":
                    assert (refused.status_code, refused.json()) == (404, {"detail": words})
                    continue
                name = "x-film" if path == "header" else "film"
                assert refused.status_code == 422
                expected = {"type": kind, "loc": [place, name], "msg": words, "input": told}
                assert refused.json()["detail"] == [expected]
            if not by_dependency:
                assert (await ask(path, ids[0], "")).status_code == 401
        assert (await client.post("/form", data={"title": "A"})).json()["detail"][0]["loc"] == ["body", "film"]
        assert (await client.post("/films", data={"film": [*ids, ids[0]]})).json() == ["a", "b"]
        described = (await client.get("/openapi.json")).json()["paths"]
        assert described["/query"]["get"]["parameters"][0]["name"] == "film"
    with pytest.raises(ValueError, match="Form needs an `alias`"):
        of(Form())
