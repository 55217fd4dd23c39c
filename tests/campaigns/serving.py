"""Hostile clients: malformed requests and slow sockets against `rookery serve`, while honest clients ask.

    python -m tests.campaigns.serving --count 100000

sends that many malformed requests, then opens one slow socket for a hundred of them. Each request must be refused with
4xx or end with its connection; each slow socket must be closed at its deadline, at most a second later; the memory of
the server grows by at most 16 MB, and honest clients wait less than twice as long as alone, or 50 ms with the slow
sockets. What they wait beside as many valid requests is printed for comparison.
"""

import asyncio
import contextlib
import itertools
import json
import random
import re
import resource
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple
from urllib.request import urlopen

from rookery.serving.limits import Limits
from tests.campaigns import run_campaign
from tests.served import tls_files

LIMITS = Limits()
TRAINING = ["agent=a2c", "env=classic/cartpole", "agent.num_envs=2", "agent.rollout_length=4", "total_timesteps=16"]
TRAINING += ["agent.network.hidden_sizes=[64,64]", "evaluation.num_episodes=2", "checkpoint.interval=8"]
RATE = 1000
"""Malformed requests per second: less than the server can refuse, or honest clients would wait for their turn."""
CONCURRENCY = 64
"""Malformed requests at a time."""
PATIENCE = 0.3
"""The client of a request that may be incomplete leaves after so many seconds without an answer."""
ANSWER_SECONDS = 10.0
"""All other requests must be answered within this time."""
MAX_BYTES = 16 * 2**20
MAX_SECONDS = 0.05
"""What honest clients wait while there are slow sockets, at the 99th percentile."""

Result = tuple[str, str | None]


class Request(NamedTuple):
    """Bytes for the server."""

    name: str
    data: bytes
    may_be_valid: bool = False
    may_be_incomplete: bool = False


def post(path: str, body: bytes, headers: str = "") -> bytes:
    """Return a request with a body."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n{headers}"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode("latin1") + body


ACT = "/v1/policies/default/act"
VALID = [
    post(ACT, b'{"obs": [[0.1, 0.2, 0.3, 0.4]]}'),
    post("/v1/episodes", b'{"episode": "a", "lease": 5.0, "info": {"a": [1, "b", null]}}'),
    post("/v1/episodes/a/step", b'{"seq": 0, "obs": [0.1, 0.2, 0.3, 0.4], "reward": 1.0, "truncated": false}'),
    post("/v1/steps", b'{"steps": [{"episode": "a", "seq": 0, "obs": [0.1, 0.2, 0.3, 0.4]}]}'),
    b"GET /v1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer abc\r\n\r\n",
    b"GET /v1/episodes/a HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
]
OBSERVATIONS = [
    *b"1e999 -1e999 NaN Infinity 1e39 null true [] {} 0x1 01 1. .5 +1 --1 1e [1,2,3] [1,2,3,4,5] [[1,2,3,4]]".split(),
    *rb'"1" "\ud800" ["a","b","c","d"] [1,2,3,[4]] [1,2,3,null] [1,2,3,true] [1,,2] [1,2,3,1e999]'.split(),
    *(b"9" * 5000, b"[" * 200_000, b'{"a":' * 200_000, b"[" * 40 + b"]" * 40, b'"' + b"x" * 100_000, b"\x00"),
    b'{"dtype": "float32", "shape": [4], "base64": "AAAA"}',
    b'{"dtype": "float32", "shape": [4], "base64": "%%%%"}',
    b'{"dtype": "float32", "shape": [1000000000000], "base64": ""}',
    b'{"dtype": "float32", "shape": [-1], "base64": "AAAA"}',
    b'{"dtype": "object", "shape": [4], "base64": "AAAA"}',
    b'{"dtype": "float64", "shape": [4], "base64": "AAAA"}',
    b'{"dtype": "float32", "shape": [2, 2], "base64": "AAAAAAAAAAAAAAAAAAAAAA=="}',
    b'{"dtype": ["float32"], "shape": "4", "base64": 1}',
]
BODIES = [
    *b"""null 1 "obs" [] { } {"obs" {"obs":} {'obs':1} {"obs":[]}x {"steps":1} {"steps":[1]}""".split(),
    *b'{"steps":[],"obs":1} {"seq":-1} {"seq":1.5} {"episode":1} {"episode":"../a"} {"episode":""}'.split(),
    *b'{"mode":"x"} {"lease":-1} {"lease":1e9} {"obz":[]} {"agents":[]} {"agents":{"x":{}}} {"explore":1}'.split(),
    *b'{"policies":{"a":1}} {"obs":[[0,0,0,0]],"carry":1} {"steps":[{}]} {"action":1} {"reward":"1"}'.split(),
    *(b"", b" ", b"\xef\xbb\xbf{}", b'{"\xff":1}', b'{"a":"\xc3"}', b'{"reward":1e999}', b"\x80" * 1000),
    *('{"obs": []}'.encode(encoding) for encoding in ("utf-16", "utf-32")),
]
PATHS = [
    *b"/ //v1 /v1/ /v1/../metrics /v1/%2e%2e/metrics /../../etc/passwd /v1/policies/%00/act /v2 /V1 /v1;a".split(),
    *b"/v1/% /.git /v1/policies/../../act /v1/policies//act /v1/episodes//step /v1/episodes/%2F/step".split(),
    *b"/v1/policies/os.system/act /v1/episodes/a/step/x /v1/episodes/\xff /metrics.json".split(),
    b"/v1/episodes/" + b"a" * 65,
]
METHODS = b"GET POST DELETE PUT PATCH HEAD OPTIONS TRACE".split()
HEADERS = [
    *("Content-Length: 5\r\n", "Content-Length: -1\r\n", "Content-Length: 99999999999999999999\r\n"),
    *("Transfer-Encoding: chunked\r\n", "Transfer-Encoding: gzip\r\n", "Upgrade: h2c\r\nConnection: Upgrade\r\n"),
    *("A: b\r\n c\r\n", "A : b\r\n", ": b\r\n", "A\r\n", "A: \x00\r\n", "A: b\n", "Ä: b\r\n"),
    *("A: " + "b" * 20_000 + "\r\n", "A: b\r\n" * 100, "Host: a\r\n", "Content-Encoding: gzip\r\n"),
    *("Content-Type: text/plain\r\n", "Origin: http://a\r\n", "Sec-Fetch-Site: cross-site\r\n"),
]
RAW = [
    bytes.fromhex("16030100f5010000f10303") + bytes(200),
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    b"GET /v1 HTTP/1.1\nHost: 127.0.0.1\n\n",
    b"GET /v1\r\n\r\n",
    b"GET /v1 HTTP/9.9\r\n\r\n",
    b"get /v1 HTTP/1.1\r\n\r\n",
    b"GET  /v1 HTTP/1.1\r\n\r\n",
    b"GET " + b"/a" * 5000 + b" HTTP/1.1\r\n\r\n",
    b"CONNECT a:80 HTTP/1.1\r\n\r\n",
    b"GET http://127.0.0.1/v1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET /v1 HTTP/1.1\r\n\r\n",
    b"\x00" * 1000,
    b"\r\n" * 20_000,
    b"POST /v1/episodes HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffffff\r\n",
    b"POST /v1/episodes HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
    b"POST /v1/episodes HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nHost: a\r\n\r\n",
    b"POST /v1/episodes HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 10000000000\r\n\r\n",
]


OVERSIZED = [
    b"POST /v1/episodes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n" + (b"10000\r\n" + bytes(2**16) + b"\r\n") * 150,
    b"POST /v1/episodes HTTP/1.1\r\n"
    + b"".join(b"A%d: %s\r\n" % (number, bytes([98]) * 2**17) for number in range(32)),
    b"POST /v1/episodes HTTP/1.1\r\nContent-Length: 10000000000\r\n\r\n" + bytes(2**23),
    post("/v1/episodes", bytes(2**23 + 1)),
]
"""Bodies and headers beyond the limits, which are sent a few times."""


def malformed_requests(seed: int) -> Iterator[Request]:
    """Yield malformed requests without end."""
    rng = random.Random(seed)
    kinds: list[Callable[[random.Random], Request]] = [odd_obs, odd_body, odd_path, odd_header, odd_bytes, cut, flipped]
    for kind in itertools.cycle(kinds):
        yield kind(rng)


def valid_requests() -> Iterator[Request]:
    """Yield valid requests without end."""
    for data in itertools.cycle([VALID[0], VALID[4]]):
        yield Request("valid", data, may_be_valid=True)


def odd_obs(rng: random.Random) -> Request:
    value, path = rng.choice(OBSERVATIONS), rng.choice([ACT, "/v1/steps"])
    body = b'{"obs": [[0,0,0,0],%s]}' if path == ACT else b'{"steps": [{"episode": "a", "obs": %s}]}'
    # A batch is accepted, and its odd entry refused.
    return Request(f"obs {value[:40]!r}", post(path, body % value), path != ACT)


def odd_body(rng: random.Random) -> Request:
    body, path = rng.choice(BODIES), rng.choice([ACT, "/v1/episodes/a/step", "/v1/steps", "/v1/episodes"])
    # An episode may start without a body.
    return Request(f"body {body[:40]!r} to {path}", post(path, body), path in ("/v1/episodes", "/v1/steps"))


def odd_path(rng: random.Random) -> Request:
    line = b"%s %s HTTP/1.1" % (rng.choice(METHODS), rng.choice(PATHS))
    return Request(repr(line), line + b"\r\nHost: 127.0.0.1\r\n\r\n")


def odd_header(rng: random.Random) -> Request:
    header = rng.choice(HEADERS)
    return Request(f"header {header[:40]!r}", post(ACT, b'{"obs": [[0, 0, 0, 0]]}', header))


def odd_bytes(rng: random.Random) -> Request:
    data = rng.choice([*RAW, rng.randbytes(rng.randrange(1, 300))])
    return Request(f"bytes {data[:40]!r}", data, may_be_incomplete=data not in RAW)


def cut(rng: random.Random) -> Request:
    data = rng.choice(VALID)
    cut = data[: rng.randrange(1, len(data))] + b"\r\n\r\n"
    return Request(f"cut {cut[-40:]!r}", cut, may_be_valid=True, may_be_incomplete=True)


def flipped(rng: random.Random) -> Request:
    data = bytearray(rng.choice(VALID))
    for _ in range(rng.randrange(1, 8)):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return Request(f"flipped {bytes(data)[:40]!r}", bytes(data), may_be_valid=True, may_be_incomplete=True)


async def fault_of(address: tuple[str, int], request: Request) -> str | None:
    """Send a request; return what is wrong with the answer, or None."""
    patience = PATIENCE if request.may_be_incomplete else ANSWER_SECONDS
    try:
        reader, writer = await asyncio.open_connection(*address)
    except OSError as error:
        return f"no connection: {error}"
    try:
        with contextlib.suppress(ConnectionError):
            writer.write(request.data)
            await asyncio.wait_for(writer.drain(), 10.0)
        line = await asyncio.wait_for(reader.readline(), patience)
    except TimeoutError:
        return None if request.may_be_incomplete else f"no answer within {patience:g} s"
    except ConnectionError:
        return None
    finally:
        writer.transport.abort()
    if not line:
        return None
    match = re.match(rb"HTTP/1\.1 (\d+) ", line)
    if match is None:
        return f"the answer is {line[:80]!r}"
    status = int(match[1])
    expected = range(200, 500) if request.may_be_valid else range(400, 500)
    return None if status in expected else f"status {status}"


async def attack(address: tuple[str, int], requests: Iterator[Request], count: int) -> list[Result]:
    """Send some requests at a constant rate."""
    start, results = time.monotonic(), []
    numbered = enumerate(itertools.islice(requests, count))

    async def send() -> None:
        for number, request in numbered:
            await asyncio.sleep(start + number / RATE - time.monotonic())
            results.append((request.name, await fault_of(address, request)))

    await asyncio.gather(*(send() for _ in range(CONCURRENCY)))
    return results


async def oversize(address: tuple[str, int]) -> list[Result]:
    """Send what is too long, a few times."""
    requests = [Request(f"oversized {data[:70]!r}", data) for data in OVERSIZED * 5]
    return [(request.name, await fault_of(address, request)) for request in requests]


# Slow sockets: each waits until the server closes, or gives up a while after its deadline. They return how many seconds
# may have passed until the deadline began to count.


async def silent(connection: socket.socket) -> float:
    await closed(connection)
    return 0.0


async def slow_headers(connection: socket.socket) -> float:
    return await trickle(connection, b"POST /v1/episodes HTTP/1.1\r\nHost: 127.0.0.1\r\nA: " + b"b" * 100)


async def slow_body(connection: socket.socket) -> float:
    connection.send(post("/v1/episodes", b" " * 100)[:-100])
    return await trickle(connection, b" " * 100)


async def unread(connection: socket.socket) -> float:
    """Ask for an answer that is longer than the system keeps, and read nothing."""
    request = post("/v1/steps", json.dumps({"steps": [{}] * NUM_REFUSED}).encode())
    start = time.monotonic()
    await asyncio.get_running_loop().sock_sendall(connection, request)
    await seen(connection, select.POLLIN)
    answered = time.monotonic() - start
    await closed(connection)
    return answered


async def half_hello(connection: socket.socket) -> float:
    connection.send(bytes.fromhex("16030100f5010000f10303"))
    await closed(connection)
    return 0.0


async def trickle(connection: socket.socket, data: bytes) -> float:
    """Send a byte a second."""
    for byte in data:
        connection.send(bytes([byte]))
        if await closed(connection, 1.0):
            break
    return 0.0


async def closed(connection: socket.socket, patience: float = 30.0) -> bool:
    """Wait until the other side has closed, without reading."""
    return await seen(connection, select.POLLRDHUP, patience)


async def seen(connection: socket.socket, event: int, patience: float = 30.0) -> bool:
    """Wait for an event."""
    poll = select.poll()
    poll.register(connection, event)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        if poll.poll(0):
            return True
        await asyncio.sleep(0.05)
    return False


SLOW = {"silent": silent, "in the headers": slow_headers, "in the body": slow_body, "answer unread": unread}
SLOW_TLS = {"handshake unfinished": half_hello}
DEADLINES = {
    "silent": LIMITS.receive_seconds,
    "in the headers": LIMITS.receive_seconds,
    "in the body": LIMITS.receive_seconds,
    "answer unread": LIMITS.unread_seconds,
    "handshake unfinished": LIMITS.handshake_seconds,
}
NUM_REFUSED = 700
"""Steps that are refused in one answer, of 110 kB."""
SPREAD_SECONDS = 5.0
LATE_SECONDS = 1.0
EARLY_SECONDS = 0.1
"""What clocks may differ by."""


async def slow_socket(address: tuple[str, int], kind: str, play: Callable[[socket.socket], Awaitable[float]]) -> Result:
    """Open a slow socket; return what is wrong with its end, or None."""
    loop = asyncio.get_running_loop()
    with socket.socket() as connection:
        connection.setblocking(False)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        await loop.sock_connect(connection, address)
        start, uncounted = time.monotonic(), 0.0
        with contextlib.suppress(ConnectionError):
            uncounted = await play(connection)
        seconds = time.monotonic() - start
    is_in_time = -EARLY_SECONDS <= seconds - DEADLINES[kind] <= uncounted + LATE_SECONDS
    return kind, None if is_in_time else f"closed after {seconds:.2f} s, of which {uncounted:.2f} do not count"


async def slow_sockets(plain: tuple[str, int], encrypted: tuple[str, int], count: int) -> list[Result]:
    """Open slow sockets of all kinds, spread over some seconds."""
    kinds = [(plain, kind, play) for kind, play in SLOW.items()] + [(encrypted, *item) for item in SLOW_TLS.items()]
    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(slow_socket(*kinds[number % len(kinds)])))
        await asyncio.sleep(SPREAD_SECONDS / count)
    return list(await asyncio.gather(*tasks))


class Honest:
    """A client in a process of its own, which steps through episodes and notes how long each answer takes."""

    def __init__(self, url: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.campaigns.serving", "--honest", url],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()

    def p99(self) -> float:
        """End; return the 99th percentile of the seconds of a step."""
        output, _ = self._process.communicate(b"\n", timeout=60.0)
        seconds = sorted(map(float, output.split()))
        return seconds[len(seconds) * 99 // 100]


def play_honestly(url: str) -> None:
    """Step through episodes until a line arrives on standard input."""
    from rookery.serving.client import Client

    client, seconds = Client(url, patience=60.0), []
    print("playing", flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        episode = client.start()
        for _ in range(20):
            start = time.perf_counter()
            episode.act([0.1, 0.2, 0.3, 0.4])
            seconds.append(time.perf_counter() - start)
            time.sleep(0.002)
        episode.end([0.0] * 4)
    print(*seconds)


@contextlib.contextmanager
def served_run(
    run: Path, *options: str, program: Sequence[str] = ("-m", "rookery")
) -> Iterator[tuple[str, subprocess.Popen]]:
    """Serve a run; yield its URL and the process."""
    command = [sys.executable, *program, "serve", str(run), "--port", "0", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            url = next(match[0] for line in process.stdout if (match := re.search(r"https?://[\d.]+:\d+", line)))
            yield url, process
        finally:
            process.terminate()


def train(folder: Path) -> Path:
    """Train for a moment, to have a run."""
    run = folder / "run"
    command = [sys.executable, "-m", "rookery", "train", *TRAINING, f"run_dir={run}"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    return run


def resident_bytes(pid: int) -> int:
    """The resident memory of a process."""
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())[1]) * 1024


def address_of(url: str) -> tuple[str, int]:
    host, port = url.split("//")[1].split(":")
    return host, int(port)


def cases(count: int, seed: int) -> Iterator[Result]:
    """Attack a server."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (resource.getrlimit(resource.RLIMIT_NOFILE)[1],) * 2)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run, tls = train(folder), tls_files(folder)
        encryption = ("--tls-cert", str(tls.cert_file), "--tls-key", str(tls.key_file))
        with (
            served_run(run, "--no-token") as (url, process),
            served_run(run, "--no-token", *encryption) as (tls_url, _),
        ):
            yield from malformed_cases(url, process.pid, count, seed)
            yield from slow_cases(url, tls_url, count // 100)


def malformed_cases(url: str, pid: int, count: int, seed: int) -> Iterator[Result]:
    address, num_first = address_of(url), count // 50
    alone = Honest(url)
    time.sleep(5.0)
    p99_alone = alone.p99()
    crowded = Honest(url)
    yield from asyncio.run(attack(address, valid_requests(), num_first))
    p99_crowded = crowded.p99()
    yield from asyncio.run(attack(address, malformed_requests(seed + 1), num_first))
    before, honest = resident_bytes(pid), Honest(url)
    yield from asyncio.run(attack(address, malformed_requests(seed), count - num_first))
    p99 = honest.p99()
    yield from asyncio.run(oversize(address))
    grown = resident_bytes(pid) - before
    metrics = urlopen(f"{url}/metrics").read().decode()
    yield "5xx in the metrics", ", ".join(re.findall(r'.*status="5.*', metrics)) or None
    times = f"{1e3 * p99_alone:.1f} ms alone, {1e3 * p99:.1f} ms in the attack"
    print(f"honest clients: {times}, {1e3 * p99_crowded:.1f} ms beside valid requests; memory +{grown / 2**20:.1f} MB")
    yield "memory", None if grown <= MAX_BYTES else f"grew by {grown / 2**20:.1f} MB"
    yield "honest clients", None if p99 < 2 * p99_alone else times


def slow_cases(url: str, tls_url: str, count: int) -> Iterator[Result]:
    honest = Honest(url)
    yield from asyncio.run(slow_sockets(address_of(url), address_of(tls_url), count))
    p99 = honest.p99()
    print(f"honest clients: {1e3 * p99:.1f} ms with {count} slow sockets")
    yield "honest clients", None if p99 < MAX_SECONDS else f"{1e3 * p99:.1f} ms"


if __name__ == "__main__":
    if sys.argv[1:2] == ["--honest"]:
        play_honestly(sys.argv[2])
    else:
        run_campaign(__doc__ or "", 100_000, cases)
