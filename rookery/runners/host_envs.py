"""Host environments as a config names them. Their libraries are imported when the first environment is made."""

import os
import time
from collections.abc import Callable
from typing import Any

import jax

from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.health import RestartPolicy

RENDER_TIMEOUT = 60.0
"""Seconds to wait for an environment that is rendered, unless `step_timeout` is set."""


def make_envs(
    env: EnvConfig, num_envs: int, is_evaluation: bool = False, longest_episode: int | None = None, **options: Any
) -> BaseEnv:
    """Make `num_envs` copies of an environment, with raw rewards.

    In an evaluation an episode is a whole game, and observations may leave the bounds of their space.
    `longest_episode` is the time limit of environments that have none. `options` replace settings of the runner.
    """
    from rookery.runners.envs.libraries import load_host_library, make_host_env

    library = load_host_library(env.name.partition("/")[0])
    settings: dict[str, Any] = {
        "processes": env.runner.processes,
        "envs_per_process": env.runner.envs_per_process,
        "step_timeout": env.runner.step_timeout,
    }
    return make_host_env(
        env.name,
        num_envs,
        episode_length=env.episode_length,
        longest_episode=longest_episode,
        sample_bounds=not is_evaluation,
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


def num_evaluation_envs(env: EnvConfig, num_envs: int, num_episodes: int) -> int:
    """Return how many environments play an evaluation: in at most one process for each core."""
    most = min(num_envs, num_episodes)
    return min(most, _num_cores() * env.runner.envs_per_process) if env.runner.processes else most


def _num_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def clips_rewards(env: EnvConfig) -> bool:
    """Return whether training on an environment learns from the signs of its rewards."""
    from rookery.runners.envs.libraries import load_host_library

    return load_host_library(env.name.partition("/")[0]).clips_rewards(env.kwargs)


def check_one_host(env: EnvConfig) -> None:
    """Raise if there are several JAX processes: each would have its own environments."""
    if jax.process_count() > 1:
        raise InvalidInputError(f"{env.name} is on the host: training on several hosts needs a device env.")
