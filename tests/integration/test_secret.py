"""The secret of an installation: where it is, what ends with it, and what a thief of a database or of a backup opens."""

import asyncio
import base64
import hashlib
import hmac
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

import pytest
from sqlalchemy import select, text, update

from tests.conftest import MakeStack
from tests.support.clock import ManualClock
from tests.support.content import KIB, Content
from tests.support.dying import Death, dying
from tests.support.problems import problem
from tests.support.process import run_cli
from tests.support.stack import Stack, patient, running_stack
from tests.support.thief import Loot, opened_by, words_of_files, words_of_rows
from tests.support.visiting import make_link, send, visit
from uploader import bootstrap
from uploader.bootstrap import Services
from uploader.database import meta, migrate, models
from uploader.database import secret as kept
from uploader.database.engine import Database
from uploader.errors import ConfigurationError
from uploader.service.secret import SECRET_FILE
from uploader.settings import Settings

A = Content(100 * KIB)
SECRET, OTHER = "a secret of the installation, long enough", "another secret, which is as long as the first"
# What versions before 0.3.0 kept in the database.
FORMER = "0123456789abcdef" * 4
OLD_SLUG = "Old-slug_of_24_charactr0"
DAY = 86400


def nothing(_what: str, _done: int, _total: int) -> None:
    """Nobody watches."""


async def a_file(stack: Stack, name: str = "s/a") -> dict[str, Any]:
    answer = await send(stack.client, A, name)
    assert answer.status_code == 201
    made: dict[str, Any] = answer.json()["file"]
    return made


async def a_signed_url(stack: Stack, file_id: str, **body: Any) -> str:
    url: str = (await stack.client.post(f"/me/files/{file_id}/link", json=body)).json()["url"]
    return url


def raw_files(url: str) -> list[Path]:
    """The files of a SQLite."""
    path = Path(url.removeprefix("sqlite:///"))
    return [each for each in (path, path.with_name(f"{path.name}-wal")) if each.exists()]


# The file


async def test_first_start_makes_a_secret_that_only_its_owner_reads(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        path = stack.data / SECRET_FILE
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        made = path.read_text()
        assert len(made.strip()) == 64
        link = await make_link(stack)
        assert made.strip() not in " ".join(map(str, await words_of_rows(stack.services.database)))
    async with make_stack() as stack:
        assert path.read_text() == made
        assert (await stack.client.get(f"/me/links/{link['id']}")).json() == link
        assert list(stack.data.glob(f".{SECRET_FILE}*")) == []


async def test_processes_that_start_at_once_have_one_secret(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        settings = stack.services.settings
    for _ in range(5):
        (stack.data / SECRET_FILE).unlink()
        made = [Services(settings) for _ in range(6)]
        await made[0].database.transact(meta.forget_fact, kept.CHECK)
        await asyncio.gather(*(services.secret.begin() for services in made))
        assert {services.secret.value.text for services in made} == {(stack.data / SECRET_FILE).read_text().strip()}
        for services in made:
            await services.close()


@pytest.mark.parametrize("damaged", [b"", b"short", b"a" * 31, bytes(64), b"\xff" * 64, b"a" * 32 + b"\0" * 32])
async def test_damaged_secret_is_refused_and_stays(make_stack: MakeStack, damaged: bytes) -> None:
    async with make_stack() as stack:
        await make_link(stack)
    path = stack.data / SECRET_FILE
    path.write_bytes(damaged)
    with pytest.raises(ConfigurationError, match="is damaged"):
        async with make_stack():
            pass
    assert path.read_bytes() == damaged


@pytest.mark.parametrize("change", [Path.unlink, lambda path: path.write_text(OTHER), None])
async def test_node_without_the_secret_of_its_database_does_not_start(
    make_stack: MakeStack, change: Callable[[Path], object] | None
) -> None:
    async with make_stack() as stack:
        path = stack.data / SECRET_FILE
    made = path.read_text()
    more = {"secret": OTHER} if change is None else {}
    if change is not None:
        change(path)
    with pytest.raises(ConfigurationError, match="uploader adopt --yes"):
        async with make_stack(**more):
            pass
    assert path.exists() is (change is not Path.unlink)
    path.write_text(made)
    async with make_stack():
        pass


async def test_readiness_and_the_doctor_know_that_the_secret_was_replaced(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        assert (await stack.anonymous().get("/readyz")).status_code == 200
        other = Services(replace(stack.services.settings, secret=OTHER))
        assert await other.secret.adopt() == 0
        ready = await stack.anonymous().get("/readyz")
        assert ready.status_code == 503
        assert "is not the secret of this database" in ready.json()["checks"]["database"]["reason"]
        await other.close()
    told = [each for each in await bootstrap.examine(stack.services.settings) if each.subject == "secrets"]
    assert [(each.level, each.what) for each in told] == [("error", "the secret is another one")]
    (stack.data / SECRET_FILE).unlink()
    told = [each for each in await bootstrap.examine(stack.services.settings) if each.subject == "secrets"]
    assert [each.what for each in told] == ["the secret of this installation is not there"]
    assert not (stack.data / SECRET_FILE).exists()


async def test_several_nodes_share_a_secret_of_the_settings(make_stack: MakeStack) -> None:
    async with make_stack(secret=SECRET) as stack, make_stack(secret=SECRET) as other:
        assert not (stack.data / SECRET_FILE).exists()
        file, link = await a_file(stack), await make_link(stack)
        url = await a_signed_url(stack, file["id"])
        assert (await other.anonymous().get(url)).content == A.data
        assert link in (await stack.client.get("/me/links")).json()["links"]
        await visit(other, link)
    # The former name of the setting is good for this release.
    async with make_stack(link_secret=SECRET) as stack:
        assert (await stack.anonymous().get(url)).content == A.data


async def test_replacing_the_secret_ends_links_and_signed_urls(make_stack: MakeStack) -> None:
    async with make_stack() as stack:
        file, link = await a_file(stack), await make_link(stack)
        url, visitor = await a_signed_url(stack, file["id"]), await visit(stack, link)
    settings = stack.services.settings
    shown = {"DATA": str(stack.data), "DATABASE_URL": str(settings.database_url), "REDIS_URL": str(settings.redis_url)}
    path = stack.data / SECRET_FILE
    before = path.read_text()
    assert "links" not in run_cli(shown, "adopt", "--yes").stdout
    path.unlink()
    assert run_cli(shown, "adopt").returncode == 2
    assert not path.exists()
    done = run_cli(shown, "adopt", "--yes")
    assert "the secret is another one than before: 1 links and all signed URLs have ended\n" in done.stdout, done.stderr
    assert path.read_text() != before
    async with make_stack() as stack:
        problem(await stack.anonymous().get(url), 401, "unauthenticated")
        problem(await stack.anonymous().post(f"{link['url']}/session"), 410, "link-gone")
        problem(await send_as(stack, visitor.headers["authorization"]), 410, "link-gone")
        assert (await stack.client.get("/me/links")).json()["links"] == []
        await visit(stack, await make_link(stack))


async def send_as(stack: Stack, authorization: str) -> Any:
    client = stack.anonymous()
    client.headers["authorization"] = authorization
    return await send(client, A, "b")


# Signatures


async def test_hostile_parts_of_signed_urls_are_refused(stack: Stack) -> None:
    """What is signed for one prefix, format or end is good for no other, however the parts are cut."""
    await a_file(stack, "s/zip/x")
    link = await make_link(stack, "download", "s/")
    visitor = await visit(stack, link)
    for prefix in ("x\n9999999999", "\n", "x\r", "x\0", "\x1b[2J"):
        problem(await visitor.post(f"{link['url']}/link", json={"prefix": prefix}), 422, "invalid-request")
    for body in (b'{"prefix": "\\ud800"}', b'{"prefix": 1}', b'{"format": "zip/x"}'):
        problem(await visitor.post(f"{link['url']}/link", content=body), 422, "invalid-request")
    url = (await visitor.post(f"{link['url']}/link", json={"prefix": "zip/x"})).json()["url"]
    assert (await stack.anonymous().get(url)).status_code == 200
    end, other = dict(parse_qsl(urlsplit(url).query))["expires"], f"{A.md5}"
    for changes in (
        *(
            {"expires": each}
            for each in ("٣", "9" * 5000, "1e5", "+1", "-1", f" {end}", f"{end}\n", f"0{end}", "", "1_0")
        ),
        *({"expires": each} for each in (f"9999999999\n{end}", f"{end}\n9999999999", "0x10", "１２", "nan", "\0")),
        *({"prefix": each} for each in ("", "x", "zip", "zip/x/", "zip/x\n9999999999", "/zip/x")),
        *({"format": "zip/zip", "prefix": each} for each in ("x", "/x")),
        *({"format": each} for each in ("tar", "zip/", "zip\n", "")),
        *({"visitor": each} for each in ("", other, "\n", "é" * 32)),
        *({"signature": each} for each in ("", "é" * 64, "0" * 64, "\ud7ff", "x\n")),
    ):
        forged = f"{urlsplit(url).path}?{urlencode(dict(parse_qsl(urlsplit(url).query)) | changes)}"
        problem(await stack.anonymous().get(forged), 401, "unauthenticated")


# What was there before


def former_query(user_id: str, subject: str, end: int) -> str:
    """As versions before 0.3.0 signed."""
    message = f"uploader/link/1\n{user_id}\n{subject}\n{end}".encode()
    signature = hmac.new(FORMER.encode(), message, hashlib.sha256).hexdigest()
    nonce = os.urandom(16)
    padded = user_id.encode().ljust(32, b"\0")
    stream = hashlib.shake_256(b"uploader/owner/1" + FORMER.encode() + nonce).digest(32)
    covered = nonce + bytes(one ^ other for one, other in zip(padded, stream, strict=True))
    told = "~" + base64.urlsafe_b64encode(covered).decode()
    return urlencode({"user": told, "expires": end, "signature": signature})


async def go_back(database: Database, link_id: str) -> None:
    """Make a database what a version before 0.3.0 has left: slugs and the secret as they are."""
    await migrate.downgrade(database, "0019")
    async with database.engine.begin() as connection:
        link = models.link
        hashed = hashlib.sha256(OLD_SLUG.encode()).hexdigest()
        await connection.execute(update(link).where(link.c.id == link_id).values(slug=OLD_SLUG, slug_sha256=hashed))
        await meta.replace_fact(connection, "link_secret", FORMER)
        await connection.execute(text("DELETE FROM link WHERE slug = X''"))


async def test_links_of_before_the_upgrade_go_on_and_a_thief_finds_none_of_them(
    make_stack_on: MakeStack, clock: ManualClock, tmp_path: Path
) -> None:
    async with make_stack_on(clock=clock, secret=SECRET) as stack:
        file = await a_file(stack)
        link = await make_link(stack, "download", "s/")
        token = stack.client.headers["authorization"]
        settings = stack.services.settings
    database = patient(str(settings.database_url))
    await go_back(database, link["id"])
    if database.engine.dialect.name == "sqlite":
        assert opened_in(raw_files(str(settings.database_url)), OLD_SLUG, FORMER) == {OLD_SLUG, FORMER}
    with pytest.raises(ConfigurationError, match="set UPLOADER_SECRET"):
        await migrate.upgrade(database)
    for at in (1, 2, 3, 4, None):
        try:
            with dying(at):
                await migrate.upgrade(database, secret=stack.services.secret.value)
        except Death:
            continue
    await migrate.check(database)
    with pytest.raises(ConfigurationError, match="uploader adopt"):
        await Services(replace(settings, secret=OTHER)).secret.begin()
    if database.engine.dialect.name == "sqlite":
        await database.close()
        assert opened_in(raw_files(str(settings.database_url)), OLD_SLUG, FORMER) == set()
        assert await database.read(meta.fact, kept.REWRITE) is None

    end = int(clock.now().timestamp()) + 30 * DAY
    old_url = f"/me/files/{file['id']}/content?{former_query('alice', file['id'], end)}"
    spelled = f"{urlsplit(old_url).path}?{urlencode(dict(parse_qsl(urlsplit(old_url).query)) | {'user': 'alice'})}"
    async with make_stack_on(clock=clock, secret=SECRET) as stack:
        stack.client.headers["authorization"] = token
        (seen,) = (await stack.client.get("/me/links")).json()["links"]
        assert seen["url"] == f"/s/{OLD_SLUG}"
        visitor = await visit(stack, seen)
        assert len((await visitor.get(f"{seen['url']}/files")).json()["files"]) == 1
        new = await make_link(stack, "upload", "inbox/")
        for url in (old_url, spelled):
            assert (await stack.anonymous().get(url)).content == A.data
        for forged in (
            former_query("alice", "0" * 32, end),
            urlencode(dict(parse_qsl(urlsplit(old_url).query)) | {"user": "bob"}),
            former_query("alice", file["id"], end + 2 * DAY),
            former_query("alice", f"{file['id']}\n{end}", end),
        ):
            answer = await stack.anonymous().get(f"{urlsplit(old_url).path}?{forged}")
            problem(answer, 401, "unauthenticated")
        url = await a_signed_url(stack, file["id"], expires_in=7 * DAY)
        loot = Loot({link["id"]: OLD_SLUG, new["id"]: new["url"][3:]}, [FORMER, SECRET, token[7:]], url, "alice")
        await look_as_a_thief(stack, loot, tmp_path / "backups")

        clock.advance(30 * DAY - 60)
        assert (await stack.anonymous().get(old_url)).content == A.data
        clock.advance(120)
        problem(await stack.anonymous().get(old_url), 401, "unauthenticated")
        await stack.services.link_keeping.forget(10)
        assert await stack.services.database.read(meta.fact, "former secret") is None
        rows = await words_of_rows(stack.services.database)
        assert not any(FORMER.encode() in word for word in rows)


def opened_in(files: list[Path], *secrets: str) -> set[str]:
    raw = b"".join(file.read_bytes() for file in files)
    return {secret for secret in secrets if secret.encode() in raw}


async def look_as_a_thief(stack: Stack, loot: Loot, backups: Path) -> None:
    """Nothing opens anything, in a copy of the database, its files and two backups; and a thief who has the secret, too,
    opens all, so the thief is able."""
    services, url = stack.services, str(stack.services.settings.database_url)
    backups.mkdir()
    await services.backups.back_up(backups, nothing)
    words = await words_of_rows(services.database)
    if url.startswith("sqlite"):
        words |= words_of_files(*raw_files(url))
    assert opened_by(words, loot) == []
    assert opened_by(words_of_files(*backups.glob("2*")), loot) == []
    with_secret = opened_by(words | {SECRET.encode()}, replace(loot, tokens=[]))
    assert {told.split(" ")[-2] for told in with_secret} >= {"gives", "opens"}
    assert f"{SECRET} signs" in with_secret
    await services.backups.back_up(backups, nothing, with_secret=True)
    newest = max(backups.glob("2*"))
    assert (newest / SECRET_FILE).read_text().strip() == SECRET
    assert stat.S_IMODE((newest / SECRET_FILE).stat().st_mode) == 0o600


async def test_a_new_database_has_nothing_that_opens_a_link(make_stack_on: MakeStack, tmp_path: Path) -> None:
    async with make_stack_on(secret=SECRET) as stack:
        file = await a_file(stack)
        links = [await make_link(stack, "download", "s/"), await make_link(stack, password="open sesame")]
        tokens = [
            (await visit(stack, links[0])).headers["authorization"][7:],
            stack.client.headers["authorization"][7:],
        ]
        slugs = {link["id"]: link["url"][3:] for link in links}
        url = await a_signed_url(stack, file["id"])
        async with stack.services.database.engine.connect() as connection:
            assert set((await connection.execute(select(models.link.c.slug))).scalars()) == {""}
        loot = Loot(slugs, [*tokens, SECRET, "open sesame"], url, "alice")
        words = await words_of_rows(stack.services.database)
        assert opened_by(words, loot) == []
        with_secret = opened_by(words | {SECRET.encode()}, replace(loot, tokens=[]))
        assert len([told for told in with_secret if " gives " in told]) == len(slugs)


# Upgrades and restores


@pytest.fixture(params=["mariadb", "mysql"])
def external_url(request: pytest.FixtureRequest) -> str:
    """A database of a server, without tables."""
    url: str = request.getfixturevalue(f"blank_{request.param}_url")
    return url


async def test_upgrade_of_an_external_database_needs_the_secret(external_url: str, tmp_path: Path) -> None:
    settings = {"DATA": str(tmp_path / "data"), "DATABASE_URL": external_url}
    refused = run_cli(settings, "db", "upgrade")
    assert (refused.returncode, refused.stdout, len(refused.stderr.splitlines())) == (2, "", 1)
    assert "UPLOADER_SECRET is not set" in refused.stderr
    assert "openssl rand -hex 32" in refused.stderr
    assert not (tmp_path / "data").exists()
    here = tmp_path / "data" / SECRET_FILE
    here.parent.mkdir()
    here.write_text(SECRET)
    told = run_cli(settings, "db", "upgrade")
    assert f"`export UPLOADER_SECRET_FILE={here}`" in told.stderr
    assert run_cli(settings | {"SECRET_FILE": str(here)}, "db", "upgrade").returncode == 0
    database = patient(external_url)
    assert await database.read(meta.fact, kept.CHECK) is not None
    await database.close()
    refused = run_cli(settings | {"SECRET": OTHER}, "work")
    assert refused.returncode == 2
    assert "is not the secret of this database" in refused.stderr


@pytest.mark.parametrize("has", ["nothing", "setting", "file", "backup"])
async def test_restore_without_the_secret_ends_what_it_signed(
    make_stack: MakeStack, sqlite_url: str, tmp_path: Path, redis_url: str, has: str
) -> None:
    backups, data = tmp_path / "backups", tmp_path / "restored"
    backups.mkdir()
    url = f"sqlite:///{data / 'uploader.db'}"
    async with make_stack(database_url=sqlite_url) as stack:
        file, link = await a_file(stack), await make_link(stack)
        signed, token = await a_signed_url(stack, file["id"]), stack.client.headers["authorization"]
        secret = stack.services.secret.value.text
        await stack.services.backups.back_up(backups, nothing, with_secret=has == "backup")
    if has == "file":
        data.mkdir()
        (data / SECRET_FILE).write_text(secret)
    given = secret if has == "setting" else None
    services = Services(Settings(data=data, database_url=url, redis_url=redis_url, secret=given))
    copied = await services.restoring.restore(await services.restoring.look(backups), nothing)
    await services.close()
    assert copied.links_ended == (1 if has == "nothing" else None)
    assert (data / SECRET_FILE).exists() is (has != "setting")
    async with running_stack(data, url, redis_url, secret=given) as restored:
        restored.client.headers["authorization"] = token
        answer = await restored.anonymous().get(signed)
        listed = (await restored.client.get("/me/links")).json()["links"]
        if has == "nothing":
            problem(answer, 401, "unauthenticated")
            problem(await restored.anonymous().post(f"{link['url']}/session"), 410, "link-gone")
            assert listed == []
        else:
            assert answer.content == A.data
            assert listed == [link]
            await visit(restored, link)
