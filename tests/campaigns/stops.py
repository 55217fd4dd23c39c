"""Stops of `rookery serve` with slow clients and an open step, whose observation tells how long the policy takes."""

import contextlib
import json
import signal
import socket
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from rookery.serving.client import Client
from tests.campaigns.serving import address_of, post, served_run, train

COMMAND = """
import sys, time
from rookery import cli
from rookery.policy import Policy

act = Policy.act

def act_slowly(policy, obs, *arguments):
    time.sleep(max(0.01, float(obs[0, 0])))
    return act(policy, obs, *arguments)

Policy.act = act_slowly
sys.exit(cli.main(sys.argv[1:]))
"""
NUM_SLOW = 100
SLOW = [b"", b"GET /v1 HTT", post("/v1/episodes", b"{}")[:-1]]
"""What slow clients have sent: nothing, a part of the headers, a part of the body."""
DRAIN = 3.0
MORE = 3.0
"""The server ends within this time after the drain."""
AT_ONCE = 0.5
PATIENCE = 60.0


def run(count: int) -> str:
    cases = {
        "a step that is answered within the drain": (1.0, 1, 143, True),
        "a step that takes longer than the drain": (20.0, 1, 143, False),
        "a second signal": (20.0, 2, -signal.SIGTERM, False),
    }
    slowest, faults = dict.fromkeys(cases, 0.0), []
    with tempfile.TemporaryDirectory() as folder:
        trained = train(Path(folder))
        for _ in range(count):
            for name, (step_seconds, num_signals, code, is_answered) in cases.items():
                stopped = stop(trained, step_seconds, num_signals)
                limit = DRAIN + MORE if num_signals == 1 else AT_ONCE
                if (stopped.code, stopped.is_answered) != (code, is_answered) or stopped.seconds > limit:
                    faults.append(f"{name}: {stopped}")
                slowest[name] = max(slowest[name], stopped.seconds)
    assert not faults, faults
    times = ", ".join(f"{name}: {seconds:.1f} s" for name, seconds in slowest.items())
    return f"{count} stops each with {NUM_SLOW} slow clients and a drain of {DRAIN:g} s, the slowest: {times}"


class Stopped(NamedTuple):
    """How a server ended."""

    code: int
    seconds: float
    """From the last signal to its end."""
    is_answered: bool
    """Whether the open step got its action."""


def stop(run: Path, step_seconds: float, num_signals: int) -> Stopped:
    """Stop a server while a step is open that takes so long."""
    options = ("--no-token", "--max-batch", "1", "--drain", str(DRAIN))
    with contextlib.ExitStack() as stack:
        url, process = stack.enter_context(served_run(run, *options, program=("-c", COMMAND)))
        episode = Client(url).start()
        for number in range(NUM_SLOW):
            slow = stack.enter_context(socket.create_connection(address_of(url)))
            slow.sendall(SLOW[number % len(SLOW)])
        step = stack.enter_context(socket.create_connection(address_of(url), timeout=PATIENCE))
        body = json.dumps({"seq": 0, "obs": [step_seconds, 0.0, 0.0, 0.0]})
        step.sendall(post(f"{episode.path}/step", body.encode()))
        time.sleep(0.3)  # the step is open
        for _ in range(num_signals):
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
        start = time.monotonic()
        code = process.wait(PATIENCE)
        seconds, answer = time.monotonic() - start, b""
        with contextlib.suppress(ConnectionError):
            answer = step.recv(4096)
    return Stopped(code, seconds, answer.startswith(b"HTTP/1.1 200") and b'"action"' in answer)
