"""Differences between the vector environments of Gymnasium, EnvPool and ALE."""

import contextlib
import multiprocessing.connection
import signal
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv

from rookery.errors import InvalidInputError
from rookery.runners.envs.validation import InvalidReplyError, row_of
from rookery.runners.faults import Failed, FaultKind, Phase

FINAL_OBS, FINAL_INFO = "final_obs", "final_info"
"""The entry for the last info of an episode, if the same step began the next one."""


class VectorInfo(Mapping):
    """The info of one env out of the infos of a vector env, read on demand."""

    __slots__ = ("_env", "_infos")

    def __init__(self, infos: Mapping, env: int) -> None:
        self._infos, self._env = infos, env

    def __getitem__(self, name: str) -> Any:
        value, mask = self._infos[name], self._infos.get(f"_{name}")
        if mask is not None and not mask[self._env]:
            raise KeyError(name)
        if isinstance(value, Mapping):
            return VectorInfo(value, self._env)
        return value[self._env] if isinstance(value, (np.ndarray, list, tuple)) else value

    def __iter__(self) -> Iterator[str]:
        for name in self._infos:
            is_mask = name.startswith("_") and name[1:] in self._infos
            mask = self._infos.get(f"_{name}")
            if not is_mask and name not in (FINAL_OBS, FINAL_INFO) and (mask is None or mask[self._env]):
                yield name

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return repr(dict(self))


def infos_by_env(infos: Mapping, envs: Collection[int]) -> dict[int, Mapping]:
    """Return the infos of a vector env by env; empty infos are omitted."""
    return {env: info for env in envs if (info := VectorInfo(infos, env))} if infos else {}


def autoreset_mode_of(vector_env: gymnasium.vector.VectorEnv, name: str = "vector_env") -> AutoresetMode:
    """Return the autoreset mode of a vector env; raise if it has none."""
    # `metadata` may be a dict of the class, in which the last instance that was made has overwritten the mode of all
    # others: Gymnasium's sync and async vector envs share that of the env they hold, ALE that of all vector envs.
    mode = getattr(getattr(vector_env, "unwrapped", vector_env), "autoreset_mode", None)
    if mode is None and vector_env.metadata is not gymnasium.vector.VectorEnv.metadata:
        mode = vector_env.metadata.get("autoreset_mode")
    if mode is None:
        raise InvalidInputError(
            f"{name} has no autoreset mode: set its own metadata['autoreset_mode'] to one of "
            f"{', '.join(map(str, AutoresetMode))}."
        )
    try:
        return AutoresetMode(mode)
    except ValueError:
        raise InvalidInputError(
            f"{name} has autoreset_mode={mode!r}; expected one of {', '.join(map(str, AutoresetMode))}."
        ) from None


def death_of_a_process(vector_env: Any, phase: Phase) -> Failed | None:
    """Return how a process of Gymnasium's async vector env ended, whose own error names only the end of a file."""
    bare = getattr(vector_env, "unwrapped", vector_env)
    if not isinstance(bare, AsyncVectorEnv):
        return None
    ended = multiprocessing.connection.wait([process.sentinel for process in bare.processes], timeout=1.0)
    for env, process in enumerate(bare.processes):
        if process.sentinel not in ended:
            continue
        process.join(timeout=1.0)  # its files are closed shortly before its exit code is known
        exit_code = process.exitcode or 0
        if exit_code < 0:
            name = signal.Signals(-exit_code).name
            return Failed(FaultKind.KILLED, phase, f"the process of env {env} was ended by {name}")
        return Failed(FaultKind.EXITED, phase, f"the process of env {env} exited with code {exit_code}")
    return None


def close_by_force(vector_env: Any) -> None:
    """Close a vector env that may never answer; Gymnasium's async one would wait for its last call."""
    bare = getattr(vector_env, "unwrapped", vector_env)
    options = {}
    if isinstance(bare, AsyncVectorEnv):
        options = {"terminate": True}
        for process in bare.processes:
            process.terminate()
        for pipe in bare.parent_pipes:
            if pipe is not None:
                pipe.close()
    with contextlib.suppress(Exception):
        vector_env.close(**options)


def is_envpool(vector_env: Any) -> bool:
    """Return whether this is an EnvPool env, without importing EnvPool."""
    return hasattr(vector_env, "all_env_ids")


def takes_a_seed_for_each(vector_env: Any) -> bool:
    return isinstance(getattr(vector_env, "unwrapped", vector_env), (SyncVectorEnv, AsyncVectorEnv))


def batch_size_of(vector_env: Any) -> int:
    """Return the number of envs that answer each step: EnvPool and ALE may step only some of them."""
    if is_envpool(vector_env):
        return vector_env.config["batch_size"] if vector_env.is_async else vector_env.num_envs
    return getattr(getattr(vector_env, "unwrapped", vector_env), "batch_size", vector_env.num_envs)


def seed_arguments(vector_env: Any, seeds: list[int | None]) -> dict[str, Any]:
    """Return the arguments of `reset` for these seeds, as far as the vector env takes seeds."""
    bare = getattr(vector_env, "unwrapped", vector_env)
    given = [seed for seed in seeds if seed is not None]
    if not given or is_envpool(bare):
        return {}
    if takes_a_seed_for_each(bare):
        return {"seed": seeds}
    if type(bare).__module__.startswith("ale_py"):
        return {"seed": np.array([-1 if seed is None else seed for seed in seeds])}
    return {"seed": given[0]}


def final_obs(infos: Mapping, envs: list[int]) -> list[Any]:
    if FINAL_OBS not in infos:
        raise InvalidReplyError(
            f"step ended episodes of envs {envs} without infos['{FINAL_OBS}'], which AutoresetMode.SAME_STEP requires."
        )
    finals = infos[FINAL_OBS]
    return [row_of(finals, env) if isinstance(finals, Mapping) else finals[env] for env in envs]
