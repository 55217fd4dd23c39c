"""Training for the command line: in a run directory, with a recorded episode and a report at the end."""

import contextlib
import importlib.metadata
import importlib.util
import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import jax
import numpy as np
from rich.console import Console

from rookery.agent import AgentState
from rookery.cli.console import one_line, print_line, print_rows, printable
from rookery.cli.garbage import CollectAsUsual
from rookery.configs import changes_from, named_again, resumed_config
from rookery.envs.libraries import is_on_host
from rookery.errors import InvalidInputError
from rookery.recorders.rows import by_policy
from rookery.registry import build_workflow, workflow_class
from rookery.report import write_report, write_video
from rookery.report.statistics import bootstrap_interval, interquartile_mean
from rookery.report.video import MAX_BYTES_IN_REPORT
from rookery.runners.ray.settings import RaySettings
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory, flat_config, make_new_folder
from rookery.runs.divergence import DIVERGED, describe_diverged
from rookery.trust import needs_trust
from rookery.types import index_tree, make_key
from rookery.workflows.programs import gather
from rookery.workflows.workflow import Workflow

STEPS_IN_REPORT = 500
"""The number of steps recorded after training: rendering may be slow."""
MAX_DEVICES = 256
"""JAX crashes while it splits a CPU into very many devices."""


def train(
    config: Mapping[str, Any], console: Console, on_all_hosts: bool = False, ray: RaySettings | None = None
) -> RunDirectory:
    """Train with a composed config in its `run_dir`, or in a new one; `on_all_hosts` uses the devices of all hosts."""
    run_dir = config["run_dir"] or None
    run = RunDirectory(str(run_dir))
    if run_dir is not None and run.config_path.exists():
        raise InvalidInputError(
            f"run_dir={run.path} already contains a run: continue it with `{command('resume', run)}`."
        )
    if not on_all_hosts:
        prepare_jax(config)
    workflow = build_workflow(config, enable_multi_devices=on_all_hosts, ray=ray)
    if jax.process_index() == 0:
        print_line(
            console, f"preparing {config['agent']['name']} on {config['env']['name']}{describe_devices(workflow)} ..."
        )

    def learn() -> Any:
        state = workflow.init(workflow.make_key())
        workflow.check_memory(state)
        if run_dir is None:
            workflow.set_run_dir(new_run_directory(config))  # now that nothing can be refused any more
        print_directory(workflow, console)
        return workflow.learn(state, CollectAsUsual())

    return _complete(workflow, learn, console)


def train_or_resume(
    config: Mapping[str, Any], console: Console, on_all_hosts: bool = False, ray: RaySettings | None = None
) -> RunDirectory:
    """Resume the run in `run_dir` if there is one with this config, and train otherwise; the budget may differ."""
    if config["run_dir"] is None:
        raise InvalidInputError("--or-resume needs to know the run: add run_dir=FOLDER.")
    run = RunDirectory(str(config["run_dir"]))
    if not run.config_path.exists():
        return train(config, console, on_all_hosts, ray)
    run = RunDirectory.open(run.path)
    check_config = partial(workflow_class(name := config["agent"]["name"]).check_config, agent_name=name)
    wanted, saved = check_config(config), run.config
    budget = {"total_timesteps": wanted.train.total_timesteps}
    same_agent = saved.get("agent", {}).get("name") == name
    before = check_config(resumed_config(saved, budget)).to_mapping() if same_agent else saved
    if differing := differing_keys(before, wanted.to_mapping()):
        raise InvalidInputError(
            f"--or-resume: the run in {run.path} has another {differing[0]}: choose another run_dir, or change the "
            f"setting with `{command('resume', run)} KEY=VALUE`."
        )
    checkpoints = Checkpoints(run.checkpoints_path)
    steps = checkpoints.steps()
    stop_reason = checkpoints.metadata().get("stop_reason") if steps else None
    if steps and (steps[-1] >= wanted.train.total_timesteps or stop_reason):
        print_line(console, f"the run in {run.path} is finished{f': {stop_reason}' if stop_reason else ''}")
        return run
    is_longer = saved["total_timesteps"] != wanted.train.total_timesteps
    overrides = [f"total_timesteps={wanted.train.total_timesteps}"] if is_longer else []
    return resume(run.path, None, console, on_all_hosts, overrides, ray=ray)


def differing_keys(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return the keys of two configs whose values differ, except for the run directory."""
    flat_one, flat_other = flat_config(one), flat_config(other)
    names = dict.fromkeys([*flat_one, *flat_other])
    return [name for name in names if name != "run_dir" and flat_one.get(name) != flat_other.get(name)]


def resume(
    path: Path,
    step: int | None,
    console: Console,
    on_all_hosts: bool = False,
    overrides: Sequence[str] = (),
    discard_later: bool = False,
    ray: RaySettings | None = None,
) -> RunDirectory:
    """Continue a run from its last checkpoint, or from the one at `step`.

    `overrides` change settings such as the budget; `discard_later` deletes the checkpoints after `step`.
    """
    run = RunDirectory.open(path)
    saved, changes = named_again(run.config, changes_from(overrides))
    config = (resumed_config(saved, changes) if changes else saved) | {"run_dir": str(run.path)}
    if not discard_later:
        Checkpoints(run.checkpoints_path).check_going_back(step, f"--step {step}", "add --yes")
    if not on_all_hosts:
        prepare_jax(config)
    workflow = build_workflow(config, enable_multi_devices=on_all_hosts, ray=ray)
    if changed := run.changed_versions():
        versions = ", ".join(f"{name} {now} instead of {before}" for name, (before, now) in changed.items())
        print_line(console, f"resumed with {printable(versions)}")
    if restart := workflow.training.environments.describe_restart():
        print_line(console, restart)

    def learn() -> Any:
        print_directory(workflow, console)
        return workflow.resume(step, CollectAsUsual())

    return _complete(workflow, learn, console)


def prepare_jax(*configs: Mapping[str, Any]) -> None:
    """Split the CPU into as many devices as runs need, and make dispatch synchronous for host environments.

    Both are possible only before the first use of JAX.
    """
    if any(is_on_host(str(config["env"]["name"])) for config in configs):
        # Passing a program to another thread takes as long as running a small network: too long for every step.
        jax.config.update("jax_cpu_enable_async_dispatch", False)
    wanted = max((number for config in configs if isinstance(number := config.get("devices"), int)), default=0)
    if wanted > MAX_DEVICES:
        raise InvalidInputError(f"devices={wanted}: one host has at most {MAX_DEVICES}.")
    num_devices = max(wanted, *map(_default_devices, configs))
    if num_devices < 1:
        return
    try:
        jax.config.update("jax_num_cpu_devices", num_devices)
    except RuntimeError as error:
        if jax.device_count() < wanted:
            raise InvalidInputError(
                f"devices={wanted}: JAX has already started with {jax.device_count()}; set the environment "
                f"variable JAX_NUM_CPU_DEVICES={wanted} before the command."
            ) from error


def _default_devices(config: Mapping[str, Any]) -> int:
    """Return the number of devices that a run with `devices: null` needs; 0 if the CPU need not be split."""
    if config.get("devices") is not None or jax.config.values["jax_num_cpu_devices"] > 0 or not _is_on_cpu_alone():
        return 0
    with contextlib.suppress(Exception):  # what is wrong with a config is reported when its workflow is built
        workflow = workflow_class(name := config["agent"]["name"])
        num_devices = workflow.default_devices(workflow.check_config(config, name), MAX_DEVICES)
        return num_devices if num_devices > 1 else 0
    return 0


def _is_on_cpu_alone() -> bool:
    """Return whether JAX will use the CPU, without starting it."""
    if platforms := jax.config.values["jax_platforms"]:
        return bool(platforms == "cpu")
    return not (importlib.metadata.entry_points(group="jax_plugins") or importlib.util.find_spec("libtpu"))


class ConsoleHandler(logging.Handler):
    """Prints log records between the lines of the progress display."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        print_line(self._console, record.getMessage(), style="yellow")


@contextlib.contextmanager
def warnings_shown(console: Console) -> Iterator[None]:
    """Print warnings of Rookery, such as failing environments, and do not propagate them."""
    logger, handler = logging.getLogger("rookery"), ConsoleHandler(console)
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.propagate = True
        logger.removeHandler(handler)


def new_run_directory(config: Mapping[str, Any], folder: str = "runs") -> str:
    """Make a new directory, <folder>/<agent>-<env>-<time>, and return its name; one of several processes makes it."""
    env_name = str(config["env"]["name"]).replace("/", "-")
    agent_name = str(config["agent"]["name"]).rpartition(":")[2]
    path = Path(folder) / f"{agent_name}-{env_name}-{time.strftime('%Y%m%d-%H%M%S')}"
    return str(make_new_folder(path) if jax.process_index() == 0 else path)


def describe_devices(workflow: Workflow) -> str:
    """Return the number of devices of a run, to be appended to a line; empty for one device."""
    num_devices = workflow.layout.mesh.size
    return f", {num_devices} devices" if num_devices > 1 else ""


def print_directory(workflow: Workflow, console: Console) -> None:
    """Print where the run is written."""
    if jax.process_index() == 0:
        print_line(console, f"run directory {workflow.settings.train.run_dir}")


def command(name: str, run: RunDirectory, *options: str) -> str:
    """Return a command for a run, quoted for the shell."""
    return shlex.join(["rookery", name, str(run.path), *options])


def describe_results(run: RunDirectory) -> str:
    """Format the returns of the last evaluation of all seeds of a run, or of several policies."""
    rows = run.read_metrics()
    evaluations = {row["seed"]: row for row in rows if "eval/mean_reward" in row}
    policies = by_policy(next(iter(evaluations.values()), {}), "eval/mean_reward")
    if len(policies) > 1 and len(evaluations) == 1:
        return ", ".join(f"{policy} {value:.2f}" for policy, value in policies.items())
    last = {seed: row["eval/mean_reward"] for seed, row in evaluations.items()}
    diverged = {row["seed"] for row in rows if DIVERGED in row}
    return describe_returns([value for seed, value in last.items() if seed not in diverged], len(diverged))


def describe_returns(returns: Sequence[float], num_diverged: int = 0) -> str:
    """Format the returns of seeds; several as interquartile mean with 95 % bootstrap interval.

    Seeds that diverged and returns that are not finite are counted and left out.
    """
    num_seeds = len(returns) + num_diverged
    if num_seeds == 1:
        return "diverged" if num_diverged else f"{returns[0]:.2f}"
    finite = np.array([value for value in returns if np.isfinite(value)])
    parts = [] if len(finite) else ["not recorded"]
    if len(finite):
        low, high = bootstrap_interval(finite)
        interval = f"95 % interval {low:.2f} to {high:.2f}, " if len(finite) > 1 else ""
        part = "" if len(finite) == num_seeds else f"{len(finite)} of "
        parts = [f"IQM {interquartile_mean(finite):.2f}, {interval}{part}{num_seeds} seeds"]
    parts += [describe_diverged(num_diverged, num_seeds)]
    if num_not_finite := len(returns) - len(finite):
        parts += [f"{num_not_finite} of {num_seeds} returns are not finite"]
    return "; ".join(filter(None, parts))


def describe_faults(run: RunDirectory) -> str:
    """Summarize failures of host environments from the last record; empty without failures."""
    rows = run.read_metrics()
    last = rows[-1] if rows else {}
    if not last.get("faults/total"):
        return ""
    given_up = f", envs given up: {last['faults/lost_envs']:,.0f}" if last["faults/lost_envs"] else ""
    return f"{last['faults/total']:,.0f} ({last['rollout/steps_discarded']:,.0f} steps discarded{given_up})"


def agent_state_of(workflow: Workflow, state: Any, index: int) -> AgentState:
    """Return the agent state of one seed from the state of a workflow."""
    agent_state = gather(state.agent_state)
    if workflow.settings.train.num_seeds == 1:
        return agent_state
    return index_tree(agent_state, index)


def _complete(workflow: Workflow, learn_fn: Callable[[], Any], console: Console) -> RunDirectory:
    """Train in the run directory and write the results there."""
    try:
        with warnings_shown(console):
            state = learn_fn()
    finally:
        workflow.close()
    run = RunDirectory(str(workflow.settings.train.run_dir))
    if jax.process_index() == 0:
        _write_results(workflow, state, run, console)
    return run


def _write_results(workflow: Workflow, state: Any, run: RunDirectory, console: Console) -> None:
    """Print the result; record an episode, write the report, and print their paths."""
    faults = describe_faults(run)
    results = [("run", str(run.path)), ("evaluation", describe_results(run)), *([("faults", faults)] if faults else [])]
    print_rows(console, results, more=True)
    options = ["--episodes", "100"]
    if needs_trust(workflow.settings.to_mapping()):
        options.append("--trust")
    try:
        with console.status("recording an episode"):
            agent_state, key = agent_state_of(workflow, state, 0), make_key(workflow.settings.train.seed)
            frames = workflow.play(agent_state, key, STEPS_IN_REPORT)
            write_video(run.episode_path, frames, max_bytes=MAX_BYTES_IN_REPORT)
        options += ["--video", "episode.gif"]
    except Exception as error:  # the other results do not depend on the picture
        run.episode_path.unlink(missing_ok=True)
        print_line(console, f"no episode was recorded: {one_line(error)}")
    with console.status("writing the report"):
        write_report([run], run.report_path)
    is_external = workflow.settings.train.env.is_external  # its simulators begin the episodes, so none can be played
    following = command("serve", run) if is_external else command("evaluate", run, *options)
    files = [
        ("report", str(run.report_path)),
        ("next", following),
        ("", command("report", run)),
    ]
    print_rows(console, files, width=max(len(name) for name, _ in results))
