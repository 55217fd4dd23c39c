"""Host environments as a config names them. Their libraries are imported when the first environment is made."""

import jax

from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import BaseEnv


def make_envs(env: EnvConfig, num_envs: int, render: bool = False, is_evaluation: bool = False) -> BaseEnv:
    """Make `num_envs` copies of an environment, with raw rewards.

    In an evaluation an episode is a whole game, and observations may leave the bounds of their space.
    """
    from rookery.runners.envs.libraries import load_host_library, make_host_env

    library = load_host_library(env.name.partition("/")[0])
    return make_host_env(
        env.name,
        num_envs,
        episode_length=env.episode_length,
        processes=env.runner.processes,
        envs_per_process=env.runner.envs_per_process,
        step_timeout=env.runner.step_timeout,
        render=render,
        sample_bounds=not is_evaluation,
        **library.kwargs_of_envs(env.kwargs, is_evaluation),
    )


def clips_rewards(env: EnvConfig) -> bool:
    """Return whether training on an environment learns from the signs of its rewards."""
    from rookery.runners.envs.libraries import load_host_library

    return load_host_library(env.name.partition("/")[0]).clips_rewards(env.kwargs)


def check_one_host(env: EnvConfig) -> None:
    """Raise if there are several JAX processes: each would have its own environments."""
    if jax.process_count() > 1:
        raise InvalidInputError(f"{env.name} is on the host: training on several hosts needs a device env.")
