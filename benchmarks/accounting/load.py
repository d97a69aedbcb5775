"""A load of `record_chunk`: fifty connections, each with one call under way, in a process of its own.

`python -m benchmarks.accounting.load PORT SECONDS RECORDS_A_SECOND`; 0 for as many as there can be. Prints JSON.
"""

import json
import select
import socket
import sys
import time
from collections import deque

import redis

from benchmarks.accounting.wire import pack
from benchmarks.report import percentile
from uploader.accounting.keys import upload_keys
from uploader.accounting.redis import Script

CONNECTIONS = 50
_UPLOADS = 2000
_CHUNK_COUNT = 10_000
_HOUR_MS = 3_600_000


def main(port: int, seconds: float, pace: int) -> dict[str, float]:
    """What came of it: records a second, latencies in ms, and the CPU share of this process."""
    prefixes = _open(port)
    sockets = [_connect(port) for _ in range(CONNECTIONS)]
    poll = select.epoll()
    by_descriptor = {sock.fileno(): sock for sock in sockets}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    idle = deque(by_descriptor)
    sent_at: dict[int, float] = {}
    latencies: list[float] = []
    started = 0
    cpu, begin = time.process_time(), time.perf_counter()
    while (now := time.perf_counter()) - begin < seconds:
        allowed = int((now - begin) * pace) if pace else sys.maxsize
        while idle and started < allowed:
            descriptor = idle.popleft()
            upload, chunk = started % _UPLOADS, started // _UPLOADS
            sent_at[descriptor] = time.perf_counter()
            by_descriptor[descriptor].sendall(_command(prefixes[upload], chunk))
            started += 1
        for descriptor, _ in poll.poll(0.0005):
            reply = by_descriptor[descriptor].recv(4096)
            latencies.append(time.perf_counter() - sent_at.pop(descriptor))
            assert b"\r\nrecorded " in reply, reply
            idle.append(descriptor)
    wall, used = time.perf_counter() - begin, time.process_time() - cpu
    named = {"p50_ms": 0.5, "p99_ms": 0.99, "p999_ms": 0.999}
    return {
        "rate": len(latencies) / wall,
        "client_cpu_share": used / wall,
        **{name: 1000 * percentile(latencies, share) for name, share in named.items()},
    }


def _open(port: int) -> list[bytes]:
    """Make uploads, and for each what a call begins with: all but the number of the chunk."""
    record, hydrate = Script("record_chunk"), Script("hydrate")
    prefixes = []
    with redis.Redis(port=port, protocol=2) as client:
        client.script_load(record.source)
        client.script_load(hydrate.source)
        era = client.eval(Script("read_upload").source, 2, "up:{s00}:", "era:{s00}", "token")[0]
        for number in range(_UPLOADS):
            id_ = f"f{time.time_ns():015x}{number:016x}"
            keys = upload_keys(0, id_)
            arguments = ["", "token", id_, era, 0, bytes(_CHUNK_COUNT // 8), _CHUNK_COUNT << 16, 1 << 16, _CHUNK_COUNT]
            client.evalsha(hydrate.sha, 7, *keys, *arguments, 0, 5000)
            whole = pack("EVALSHA", record.sha, 7, *keys, "", "token", id_)
            # Six more arguments follow.
            prefixes.append(whole.replace(b"*13\r\n", b"*19\r\n", 1))
    return prefixes


_TAIL = pack(65536, _HOUR_MS, _HOUR_MS, 1 << 40, 30_000).partition(b"\r\n")[2]


def _command(prefix: bytes, chunk: int) -> bytes:
    number = b"%d" % chunk
    return b"%b$%d\r\n%b\r\n%b" % (prefix, len(number), number, _TAIL)


def _connect(port: int) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))))
