"""`rookery serve`: answers simulators and other programs over HTTP with the policies of a run."""

import argparse
import contextlib
import gc
import shlex
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from rookery.cli.console import make_console, print_line, print_rows, printable
from rookery.cli.run_argument import add_trust

if TYPE_CHECKING:  # imported when the command runs: they take long
    from rookery.offline.episode_log import EpisodeLog
    from rookery.policy import Policy
    from rookery.runners.envs.agent_spaces import AgentSpaces
    from rookery.runners.envs.base_env import AgentID
    from rookery.serving.policy_server import PolicyServer
    from rookery.serving.server import Server

DEFAULT = "default"
"""The name of the policy of a run that has one."""
MAX_BODY = 400
"""The longest body in the printed command: observations may be images."""


def add_serve(commands: "argparse._SubParsersAction") -> None:
    command = commands.add_parser("serve", help="answer simulators over HTTP with the policy of a run")
    command.add_argument("path", type=Path, metavar="PATH", help="a run directory, or the folder of one checkpoint")
    command.add_argument(
        "--step", type=int, metavar="N", help="the checkpoint at this env step (default: the last one)"
    )
    command.add_argument("--best", action="store_true", help="the best checkpoint of all evaluations in training")
    command.add_argument(
        "--individual",
        choices=["best", "rl"],
        help="evolution: the fittest individual instead of the center; rl: the learner's actor of a hybrid",
    )
    command.add_argument("--member", type=int, metavar="N", help="population: member N, from 0, instead of the best")
    command.add_argument("--explore", action="store_true", help="sample actions, unless a client says otherwise")
    command.add_argument("--host", default="127.0.0.1", help="the address to listen on (default: 127.0.0.1)")
    command.add_argument("--port", type=int, default=8642, help="the port (default: 8642; 0: a free one)")
    command.add_argument(
        "--token-file",
        type=Path,
        default=Path("token"),
        metavar="FILE",
        help="lines `name scope token`, of mode 0600; made if it is absent (default: token)",
    )
    command.add_argument("--no-token", action="store_true", help="let all programs of this machine ask")
    command.add_argument("--tls-cert", type=Path, metavar="FILE", help="the certificate, with its chain")
    command.add_argument("--tls-key", type=Path, metavar="FILE", help="its key, of mode 0600")
    command.add_argument("--insecure", action="store_true", help="listen on other addresses without token or TLS")
    command.add_argument(
        "--allow-origin", action="append", default=[], metavar="URL", help="let pages of this site ask, from browsers"
    )
    command.add_argument("--log", type=Path, metavar="DIR", help="write every step as a log")
    command.add_argument(
        "--max-episodes", type=int, default=1024, metavar="N", help="open episodes at a time (default: 1024)"
    )
    command.add_argument(
        "--max-batch", type=int, default=256, metavar="N", help="observations in a batch (default: 256)"
    )
    command.add_argument(
        "--drain", type=float, default=10.0, metavar="S", help="seconds for open steps when stopped (default: 10)"
    )
    command.add_argument(
        "--limit",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a limit of requests, as GET /v1 lists them: --limit body=1000000",
    )
    add_trust(command)
    command.set_defaults(run_fn=run_serve)


def run_serve(arguments: argparse.Namespace) -> int:
    import jax

    from rookery.errors import RookeryError, check_count
    from rookery.runs.interruption import Interrupted, StopSignals

    check_count("--max-episodes", arguments.max_episodes)
    check_count("--max-batch", arguments.max_batch)
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # another thread costs more than a small network
    with StopSignals() as signals, contextlib.ExitStack() as stack:
        num_open = serve(arguments, stack).serve_until(signals, arguments.drain)
        if signals.requested is None:
            raise RookeryError("the server has ended by itself: its log has the reason.")
        answered = f"{num_open} requests still waited for actions" if num_open else "all open steps were answered"
        raise Interrupted(signals.requested, answered)


def serve(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> "Server":
    """Start the server of a run, on its port before anything compiles."""
    from rookery.api.loading import individual_of
    from rookery.configuration import from_mapping
    from rookery.errors import InvalidInputError
    from rookery.runners.envs.episode_book import EpisodeBook
    from rookery.serving.app import Application
    from rookery.serving.episodes import Episodes
    from rookery.serving.limits import Limits
    from rookery.serving.metrics import Metrics
    from rookery.serving.policy_server import PolicyServer
    from rookery.serving.reload import Reload
    from rookery.serving.server import Server, check_address
    from rookery.serving.tls import Tls
    from rookery.serving.tokens import Tokens

    if (arguments.tls_cert is None) is not (arguments.tls_key is None):
        raise InvalidInputError("--tls-cert and --tls-key belong together: give both.")
    check_address(arguments.host, not arguments.no_token, arguments.tls_cert is not None, arguments.insecure)
    read = partial(read_policies, arguments.path, individual_of(arguments.individual, arguments.member))
    version, policies = read(arguments.step, arguments.best)
    mapping = mapping_of(policies)
    spaces: AgentSpaces = {
        agent: (policies[name].obs_space, policies[name].action_space) for agent, name in mapping.items()
    }
    tls = None if arguments.tls_cert is None else Tls(arguments.tls_cert, arguments.tls_key)
    tokens = Tokens.none() if arguments.no_token else Tokens.open(arguments.token_file)
    limits, metrics = from_mapping(Limits, dict(map(_limit, arguments.limit)), "--limit"), Metrics()
    book = EpisodeBook(0, spaces, arguments.max_episodes)
    log = None if arguments.log is None else open_log(arguments.log, spaces)
    policy_server = PolicyServer(policies, mapping, version, book, metrics, arguments.max_batch, log)
    stack.callback(policy_server.close)
    episodes = Episodes(book, spaces, notify=policy_server.wake)
    app = Application(
        episodes, tokens, limits, metrics, policy_server, arguments.allow_origin, explores=arguments.explore
    )
    server = Server(app, arguments.host, arguments.port, limits, tls, metrics)
    server.bind()
    server.start()
    policy_server.warm_up()
    gc.freeze()  # what is there now stays: it is not searched for cycles while requests wait
    app.is_ready = True
    newest = None if arguments.step is not None or arguments.best else newest_step_fn(arguments.path)
    if newest is not None:
        reload = Reload(policy_server, newest, lambda step: read(step)[1], metrics)
        reload.start()
        stack.callback(reload.stop)
    describe(server, policy_server, None if arguments.no_token else arguments.token_file)
    return server


def _limit(text: str) -> tuple[str, str]:
    """Return name and value of a limit."""
    name, _, value = text.partition("=")
    return name, value


def read_policies(
    path: Path, individual: str | None, step: int | None = None, best: bool = False
) -> "tuple[int, dict[str, Policy]]":
    """Return the step of a checkpoint and its policies by name; the only one is called `default`."""
    from rookery.api.loading import load_team

    step, policies = load_team(path, step, best, individual)
    return step, dict(zip([DEFAULT], policies.values(), strict=True)) if len(policies) == 1 else policies


def mapping_of(policies: "Mapping[str, Policy]") -> "dict[AgentID, str]":
    """Return the policy of each agent: several policies act for agents with their names."""
    from rookery.runners.envs.base_env import SINGLE_AGENT

    return {SINGLE_AGENT: DEFAULT} if DEFAULT in policies else {name: name for name in policies}


def newest_step_fn(path: Path) -> Callable[[], int | None] | None:
    """Return what finds the step of the newest checkpoint of a run; None for the folder of one checkpoint."""
    from rookery.runs.checkpoint import Checkpoints
    from rookery.runs.directory import RunDirectory
    from rookery.runs.files import CONFIG_NAME, is_there

    if not is_there(path, CONFIG_NAME):
        return None
    checkpoints = Checkpoints(RunDirectory.open(path).checkpoints_path)
    return lambda: max(checkpoints.steps(), default=None)


def open_log(folder: Path, spaces: "AgentSpaces") -> "EpisodeLog":
    """Open the log of all steps."""
    from rookery.errors import InvalidInputError
    from rookery.offline.episode_log import EpisodeLog

    try:
        return EpisodeLog(folder, spaces)
    except OSError as error:
        raise InvalidInputError(f"--log={folder}: no log can be written there: {error.strerror}.") from None


def describe(server: "Server", policy_server: "PolicyServer", token_file: Path | None) -> None:
    """Print where the server is, what it serves, and how to ask."""
    from rookery.policy import first_obs
    from rookery.serving.messages import encode

    console = make_console()
    policies, version, _ = policy_server.team
    name, policy = next(iter(policies.items()))
    print_line(console, f"serving {server.url}, version {version:,}")
    rows = [(name, repr(policy)) for name, policy in policies.items()]
    token = "none is needed" if token_file is None else str(token_file)
    print_rows(console, [*[(name, printable(text)) for name, text in rows], ("token", token)], more=True)
    body = encode({"obs": first_obs(policy.obs_space, 1)}).decode().strip()
    lines = [f"curl {server.url}/v1/policies/{quote(name, safe='')}/act -H 'Content-Type: application/json'"]
    if token_file is not None:
        lines.append(f' -H "Authorization: Bearer $(head -1 {shlex.quote(str(token_file))} | cut -d" " -f3)"')
    lines.append(f" -d '{body}'" if len(body) <= MAX_BODY else " -d @observations.json")
    print_line(console, printable("".join(lines)))
