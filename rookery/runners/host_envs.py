"""Host environments as a config names them. Their libraries are imported when the first environment is made."""

import operator
import os
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax

from rookery.cores import NUM_CORES
from rookery.envs.config import EnvConfig
from rookery.errors import EnvironmentCheckError, InvalidInputError
from rookery.runners.envs.base_env import SINGLE_AGENT, BaseEnv
from rookery.runners.faults import EnvFaultError, Failed, Fault, FaultKind, Phase
from rookery.runners.health import RestartPolicy
from rookery.runners.transports.transport import EnvTransport

TRIAL_SEED = 0
"""The seed of the reset that is tried before training; every episode of a run begins with its own."""
RENDER_TIMEOUT = 60.0
"""Seconds to wait for an environment that is rendered, if `step_timeout` sets no limit."""


def make_envs(
    env: EnvConfig, num_envs: int, is_evaluation: bool = False, longest_episode: int | None = None, **options: Any
) -> BaseEnv:
    """Make `num_envs` copies of an environment, with raw rewards.

    In an evaluation an episode is a whole game, and observations may leave the bounds of their space.
    `longest_episode` is the time limit of environments that have none. `options` replace settings of the runner.
    """
    from rookery.runners.envs.libraries import load_host_library, make_host_env

    library = load_host_library(env.name.partition("/")[0])
    settings: dict[str, Any] = {"processes": env.runner.processes, **env.runner.process_options}
    return make_host_env(
        env.name,
        num_envs,
        episode_length=env.episode_length,
        longest_episode=longest_episode,
        sample_bounds=not is_evaluation,
        wrappers=env.wrappers,
        **settings | options,
        **library.kwargs_of_envs(env.kwargs, is_evaluation),
    )


def make_rendered_env(env: EnvConfig) -> BaseEnv:
    """Make one environment that renders, in another process: MuJoCo without a screen ends the process it is in."""
    if os.name != "posix":  # where there are no processes
        return make_envs(env, 1, is_evaluation=True, render=True)
    step_timeout = env.runner.step_timeout or RENDER_TIMEOUT
    return make_envs(env, 1, is_evaluation=True, render=True, processes=True, step_timeout=step_timeout)


def make_with_retries(
    make_fn: Callable[[], BaseEnv], restart: RestartPolicy, sleep: Callable[[float], None] = time.sleep
) -> BaseEnv:
    """Make environments; try again if that fails, as often as an environment is restarted."""
    for num_tries in range(restart.max_restarts):
        try:
            return make_fn()
        except Exception:
            sleep(restart.delay(num_tries))
    return make_fn()


def try_first_reset(base_env: BaseEnv, env: EnvConfig, sleep: Callable[[float], None] = time.sleep) -> None:
    """Reset one environment, so that its mistakes appear before anything is compiled.

    If that fails, it is restarted as often as in training. Vector environments of a library are not tried, because they
    take their seeds with their first reset.
    """
    base_env.prepare()
    transport = getattr(getattr(base_env, "vector_env", base_env), "transport", None)
    if transport is None:
        return
    restart = RestartPolicy(max_restarts=env.runner.max_restarts)
    num_tries = 0
    while (failed := _failed_reset(base_env, transport)) is not None:
        is_raised = failed.kind is FaultKind.INVALID and env.runner.on_invalid == "raise"
        if is_raised or num_tries == restart.max_restarts:
            fault = Fault(failed, base_env.name, 0, TRIAL_SEED, episode=0, step=0, action=None)
            raise EnvFaultError(f"no episode can begin: {fault}", fault)
        sleep(restart.delay(num_tries))
        transport.rebuild(0)
        num_tries += 1


def _failed_reset(base_env: BaseEnv, transport: EnvTransport) -> Failed | None:
    """Reset the first environment and check its observations; return the failure, if there is one."""
    from rookery.runners.envs.validation import ObsStacker, as_failed, check_reply

    reply = transport.apply(0, operator.methodcaller("reset", seed=TRIAL_SEED))
    if isinstance(reply, Failed):
        return replace(reply, phase=Phase.RESET)
    try:
        check_reply(reply, Phase.RESET)
        observations = reply[0] if base_env.is_multi_agent else {SINGLE_AGENT: reply[0]}
        for agent, obs in observations.items():
            for error in ObsStacker(base_env.spaces[agent][0], sample_bounds=False).stack([obs])[1].values():
                raise error
    except EnvironmentCheckError as error:
        return as_failed(error, Phase.RESET)
    except Exception as error:  # observations that are no dict by agent
        return Failed.by_exception(error, Phase.RESET, FaultKind.INVALID)
    return None


def num_evaluation_envs(env: EnvConfig, num_envs: int, num_episodes: int) -> int:
    """Return how many environments play an evaluation: in at most one process for each core."""
    most = min(num_envs, num_episodes)
    return min(most, NUM_CORES * env.runner.envs_per_process) if env.runner.processes else most


def clips_rewards(env: EnvConfig) -> bool:
    """Return whether training on an environment learns from the signs of its rewards."""
    from rookery.runners.envs.libraries import load_host_library

    return load_host_library(env.name.partition("/")[0]).clips_rewards(env.kwargs)


def check_one_host(env: EnvConfig) -> None:
    """Raise if there are several JAX processes: each would have its own environments."""
    if jax.process_count() > 1:
        raise InvalidInputError(f"{env.name} is on the host: training on several hosts needs a device env.")
