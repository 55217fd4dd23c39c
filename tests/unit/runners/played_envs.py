"""Playing host environments by fixed actions, and what they said."""

from typing import Any

import numpy as np

from rookery.runners.envs.base_env import Actions, BaseEnv, EnvOutputs


def play(base_env: BaseEnv, actions: np.ndarray, seed: int = 0) -> list[EnvOutputs]:
    """Step all envs with these actions `[T, B]`, asking for new episodes at once; return all polls with rows."""
    for env in range(base_env.num_envs):
        base_env.try_reset(env, seed + env)
    polls = [base_env.poll()]
    live = set(polls[0].envs.tolist())
    for row in actions:
        envs = np.array(sorted(live))
        if len(envs):
            base_env.send_actions(Actions(envs, row[envs]))
        polled = base_env.poll()
        while len(polled.envs):
            assert not polled.failed
            polls.append(polled)
            live = (live | set(polled.envs.tolist())) - set(polled.over)
            for env in polled.over:
                base_env.try_reset(env, None)
            polled = base_env.poll(timeout=0) if polled.over else EnvOutputs(*[np.zeros(0)] * 6)
    base_env.close()
    return polls


def column(polls: list[EnvOutputs], env: int, name: str) -> list[Any]:
    """What the polls say of one env."""
    return [getattr(polled, name)[row] for polled in polls for row in np.flatnonzero(polled.envs == env)]
