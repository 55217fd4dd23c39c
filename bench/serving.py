"""What it costs to serve a step over HTTP: CPU time of the server process, with a 64x64 policy and all checks."""

import asyncio
import contextlib
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.request import urlopen

from bench.processes import measure
from bench.table import Row

NUM_CLIENTS = 128
STEPS_PER_REQUEST = 64
NUM_ROUNDS = 3
SECONDS = 2.0
"""Of a measurement."""
WARM_UP = 300
"""Steps of each client before a measurement: all is compiled by then."""
FIRST_STEP = b'"obs": [0.01, -0.02, 0.03, 0.04]'
STEP = FIRST_STEP + b', "reward": 1.0'
TRAINING = ["agent=ppo", "env=classic/cartpole", "total_timesteps=2048", "evaluation.num_episodes=2"]


def rows() -> Iterator[Row]:
    with process("bare") as bare, process("served") as served:
        costs: dict[str, Cost] = {}
        for _ in range(NUM_ROUNDS):
            for name, server, load in (
                ("bare", bare, Load(NUM_CLIENTS)),
                ("served", served, Load(NUM_CLIENTS)),
                ("batched", served, Load(NUM_CLIENTS // STEPS_PER_REQUEST, STEPS_PER_REQUEST)),
                ("bare alone", bare, Load(1)),
                ("alone", served, Load(1)),
            ):
                cost = asyncio.run(cost_of(server, load))
                costs[name] = min(costs.get(name, cost), cost)
    yield row("served step, 128 clients", costs["served"].us, "bare asyncio", costs["bare"].us, aim=80)
    yield Row("latency, 128 clients: p50, p99", costs["served"].latency, f"bare asyncio {costs['bare'].latency}")
    yield row("served step, 64 in a request", costs["batched"].us, "one in a request", costs["served"].us, aim=12)
    yield row("served step, 1 client", costs["alone"].us, "bare asyncio", costs["bare alone"].us, aim=350)
    yield Row("latency, 1 client: p50, p99", costs["alone"].latency, f"bare asyncio {costs['bare alone'].latency}")
    learned = min(learned_cost() for _ in range(NUM_ROUNDS))
    reference = measure("bench.serving", "stepped", cores=sorted(os.sched_getaffinity(0)))["us"]
    yield row("step learned from, 128 clients", learned.us, "CartPoles that are stepped", reference, aim=90)
    yield ready_row()


class Cost(NamedTuple):
    """What a step costs the server, and how long its client waits."""

    us: float
    """Microseconds of CPU time."""
    p50: float
    """Milliseconds."""
    p99: float

    @property
    def latency(self) -> str:
        return f"{self.p50:.2f}, {self.p99:.2f} ms"


def learned_cost() -> Cost:
    """The cost of a step that is learned from; the clients of a measurement leave their places taken."""
    with process("learned") as learned:
        return asyncio.run(cost_of(learned, Load(NUM_CLIENTS)))


def row(name: str, cost: float, other: str, other_cost: float, aim: float) -> Row:
    """Compare microseconds of CPU time."""
    return Row(name, f"{cost:.1f} us (aim {aim:g})", f"{other} {other_cost:.1f} us", other_cost / cost)


def ready_row() -> Row:
    """Seconds from the command to the first answer, with a warm cache of compiled programs."""
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import jax"], check=True)
    import_seconds = time.perf_counter() - start
    with tempfile.TemporaryDirectory() as folder:
        rookery = [sys.executable, "-m", "rookery"]
        quiet: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        run = f"{folder}/run"
        subprocess.run([*rookery, "train", *TRAINING, f"run_dir={run}"], check=True, **quiet)
        for _ in range(2):
            start = time.perf_counter()
            with subprocess.Popen([*rookery, "serve", run, "--no-token", "--port", "8651"], **quiet) as server:
                wait_until_ready("http://127.0.0.1:8651/healthz")
                seconds = time.perf_counter() - start
                server.terminate()
    return Row("ready after `rookery serve`", f"{seconds:.2f} s (aim +3)", f"import jax {import_seconds:.2f} s")


def wait_until_ready(url: str) -> None:
    while True:
        with contextlib.suppress(OSError), urlopen(url, timeout=1.0):
            return
        time.sleep(0.02)


class Load(NamedTuple):
    """What clients do: each sends requests with some steps, one after the other."""

    num_clients: int
    steps_per_request: int = 1


class Server(NamedTuple):
    """A process that serves."""

    pid: int
    port: int

    def cpu_seconds(self) -> float:
        """The CPU time of all its threads."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def process(kind: str) -> Iterator[Server]:
    """Run a server of this module in a process."""
    command = [sys.executable, "-m", "bench.serving", kind]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        yield Server(child.pid, int(child.stdout.readline()))
        child.kill()


async def cost_of(server: Server, load: Load) -> Cost:
    """Measure the steps of clients that send the next one as soon as the last one is answered."""
    loop = asyncio.get_running_loop()
    clients = [Client(number, load.steps_per_request) for number in range(load.num_clients)]
    for client in clients:
        await loop.create_connection(lambda client=client: client, "127.0.0.1", server.port)
    while min(client.num_steps for client in clients) < WARM_UP:
        await asyncio.sleep(0.01)
    for client in clients:
        client.latencies.clear()
    num_steps, seconds = sum(client.num_steps for client in clients), server.cpu_seconds()
    await asyncio.sleep(SECONDS)
    num_steps, seconds = sum(client.num_steps for client in clients) - num_steps, server.cpu_seconds() - seconds
    latencies = sorted(latency for client in clients for latency in client.latencies)
    for client in clients:
        client.transport.close()
    p50, p99 = (1e3 * latencies[len(latencies) * percent // 100] for percent in (50, 99))
    return Cost(1e6 * seconds / num_steps, p50, p99)


class Client(asyncio.Protocol):
    """Plays endless episodes, and sends the next step as soon as the last one is answered."""

    transport: asyncio.Transport

    def __init__(self, number: int, steps_per_request: int) -> None:
        self.num_steps = 0
        self.latencies: list[float] = []
        self._sent_at = 0.0
        self._names = [f"{time.monotonic_ns()}-{number}-{index}" for index in range(steps_per_request)]
        self._num_started = 0
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._send_next()

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        if len(body) < int(head.partition(b"content-length: ")[2].partition(b"\r")[0] or b"1"):
            return
        assert head.startswith(b"HTTP/1.1 20"), self._received
        self.latencies.append(time.perf_counter() - self._sent_at)
        self._received = b""
        if self._num_started == len(self._names):
            self.num_steps += len(self._names)
        else:
            self._num_started += 1
        self._send_next()

    def _send_next(self) -> None:
        step = STEP if self.num_steps else FIRST_STEP
        if self._num_started < len(self._names):
            path, body = "/v1/episodes", b'{"episode": "%s"}' % self._names[self._num_started].encode()
        elif len(self._names) == 1:
            path, body = f"/v1/episodes/{self._names[0]}/step", b'{"seq": %d, %s}' % (self.num_steps, step)
        else:
            seq = self.num_steps // len(self._names)
            steps = (b'{"episode": "%s", "seq": %d, %s}' % (name.encode(), seq, step) for name in self._names)
            path, body = "/v1/steps", b'{"steps": [%s]}' % b",".join(steps)
        head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        self._sent_at = time.perf_counter()
        self.transport.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)


# What runs in the processes.


def bare() -> None:
    """Answer every packet with the same bytes."""
    import uvloop

    answer = b'HTTP/1.1 200 OK\r\ncontent-length: 33\r\n\r\n{"seq":0,"action":0,"version":10}'

    class Constant(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            self.transport = transport

        def data_received(self, data: bytes) -> None:
            self.transport.write(answer)  # type: ignore[attr-defined]

    async def serve() -> None:
        server = await asyncio.get_running_loop().create_server(Constant, "127.0.0.1", 0)
        print(server.sockets[0].getsockname()[1], flush=True)
        await server.serve_forever()

    uvloop.run(serve())


def served() -> None:
    """Serve a policy of CartPole that nobody trained."""
    from rookery.cli.garbage import collect_rarely
    from rookery.runners.envs.base_env import SINGLE_AGENT
    from rookery.runners.envs.episode_book import EpisodeBook
    from rookery.serving.app import Application
    from rookery.serving.episodes import Episodes
    from rookery.serving.limits import Limits
    from rookery.serving.metrics import Metrics
    from rookery.serving.policy_server import PolicyServer
    from rookery.serving.server import Server
    from rookery.serving.tokens import Tokens

    collect_rarely()  # as all commands do
    policy, limits, metrics = cartpole_policy(), Limits(), Metrics()
    spaces = {SINGLE_AGENT: (policy.obs_space, policy.action_space)}
    book = EpisodeBook(0, spaces, 4096)
    policies = PolicyServer({"default": policy}, {SINGLE_AGENT: "default"}, 0, book, metrics)
    app = Application(Episodes(book, spaces, notify=policies.wake), Tokens.none(), limits, metrics, policies)
    server = Server(app, "127.0.0.1", 0, limits, metrics=metrics)
    server.bind()
    policies.warm_up()
    gc.freeze()  # as in `rookery serve`
    app.is_ready = True
    server.start()
    print(server.port, flush=True)
    time.sleep(3600.0)


def learned() -> None:
    """Serve clients that a runner learns from."""
    from rookery.cli.garbage import CollectAsUsual
    from rookery.runners import to_base_env
    from rookery.runners.envs.base_env import SINGLE_AGENT
    from rookery.serving.env import ServedEnv, ServedSettings

    policy = cartpole_policy()
    settings = ServedSettings(spaces="-", port=0, token_file=None, max_episodes=NUM_CLIENTS)
    env = ServedEnv(settings, {SINGLE_AGENT: (policy.obs_space, policy.action_space)})
    base_env = to_base_env(env)
    with contextlib.redirect_stdout(sys.stderr):
        base_env.prepare()
    runner = runner_of(base_env)
    print(env.url.rpartition(":")[2], flush=True)
    collect_as_usual = CollectAsUsual()  # as training does
    while True:
        runner.sample(num_steps=64 * NUM_CLIENTS)
        collect_as_usual(None)


def stepped() -> dict[str, float]:
    """Return the microseconds of CPU time of a step of a runner that steps CartPoles."""
    import gymnasium

    from rookery.runners import to_base_env

    runner = runner_of(to_base_env(make_env=lambda index: gymnasium.make("CartPole-v1"), num_envs=NUM_CLIENTS))
    best = float("inf")
    for _ in range(NUM_ROUNDS):
        start = time.process_time()
        runner.sample(num_steps=64 * NUM_CLIENTS)
        best = min(best, time.process_time() - start)
    return {"us": 1e6 * best / (64 * NUM_CLIENTS)}


def cartpole_policy() -> Any:
    import jax
    import numpy as np

    jax.config.update("jax_cpu_enable_async_dispatch", False)  # as in `rookery serve` and in training

    from rookery.agents.policy import PolicyAgent
    from rookery.policy import Policy
    from rookery.spaces import Box, Discrete

    agent, spaces = PolicyAgent(), (Box(-np.inf, np.inf, (4,)), Discrete(2))
    return Policy(agent, agent.init(*spaces, jax.random.key(0)), *spaces)


def runner_of(base_env: Any) -> Any:
    policy = cartpole_policy()

    from rookery.runners import EnvRunner, RunnerConfig

    runner = EnvRunner(base_env, policy.agent, config=RunnerConfig())
    runner.set_agent_states(policy.agent_state)
    return runner


if __name__ == "__main__":
    print(json.dumps(globals()[sys.argv[1]]()))
