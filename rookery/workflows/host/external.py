"""What training on external simulators needs: a check, the origin of rows, and an evaluator that plays none."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.evaluators.host import HostEvaluateMetric, MultiPolicyEvaluateMetric
from rookery.evaluators.playback import RenderError
from rookery.learners.learner import Learner
from rookery.learners.replay import ReplayLearner
from rookery.runners.acting.policy_map import PolicyID
from rookery.runners.recording.episode import EpisodeMetric
from rookery.runners.sampling import Sample
from rookery.sample_batch import SampleBatch
from rookery.types import Key, PyTreeDict

ORIGIN_FIELDS = ("version", "logged")
"""The entries of `env_extras` that tell who acted."""


def check_windows(env: EnvConfig, learner: Learner) -> None:
    """Raise if no fragment holds a window of the replay buffer."""
    length = learner.config.rollout_length
    if isinstance(learner, ReplayLearner) and length < (window := learner.config.window_length):
        raise InvalidInputError(
            f"agent.rollout_length={length} holds no window of {window} steps, and fragments of {env.name} do not "
            f"continue each other: use agent.rollout_length={window} or more."
        )


def ages_of(samples: Iterable[Sample], version: int) -> np.ndarray:
    """Return by how many versions of the parameters each row lags."""
    rows = [
        version - batch.extras.env_extras.version[batch.extras.env_extras.autoreset == 0]
        for sample in samples
        for batch in sample.batch.batches.values()
    ]
    return np.concatenate(rows) if rows else np.zeros(0, np.int32)


def num_logged(sample: Sample) -> int:
    """Return in how many rows the simulator acted itself."""
    return sum(int(batch.extras.env_extras.logged.sum()) for batch in sample.batch.batches.values())


def without_origin(sample: Sample) -> Sample:
    """Return a sample without the entries that tell who acted, which learners do not know."""
    batches = {policy: _without_origin(batch) for policy, batch in sample.batch.batches.items()}
    return replace(sample, batch=sample.batch.replace(batches=PyTreeDict(batches)))


def _without_origin(batch: SampleBatch) -> SampleBatch:
    env_extras = PyTreeDict({name: leaf for name, leaf in batch.extras.env_extras.items() if name not in ORIGIN_FIELDS})
    return batch.replace(extras=batch.extras.replace(env_extras=env_extras))


class SimulatorEpisodes:
    """Stands for the evaluator: simulators begin the episodes, also those that evaluate. There may be none."""

    max_episode_steps = 0

    def __init__(self, env: EnvConfig, take_evaluated: Callable[[], list[EpisodeMetric]]) -> None:
        self._name, self._has_several_agents = env.name, env.has_several_agents
        self._take_evaluated = take_evaluated

    def evaluate(self, agent_state: AgentState, key: Key, num_episodes: int) -> HostEvaluateMetric:
        """Return the episodes that simulators have played to evaluate since the last call."""
        episodes = self._take_evaluated()
        fields: dict[str, Any] = {
            "episode_returns": jnp.array([episode.episode_return for episode in episodes], jnp.float32),
            "episode_lengths": jnp.array([episode.episode_length for episode in episodes], jnp.int32),
            "num_left_out": 0,
        }
        if not self._has_several_agents:
            return HostEvaluateMetric(**fields)
        by_policy: dict[PolicyID, list[float]] = {}
        for episode in episodes:
            for policy in sorted(set(episode.policies.values())):
                theirs = [episode.agent_returns[agent] for agent, name in episode.policies.items() if name == policy]
                by_policy.setdefault(policy, []).append(sum(theirs))
        policy_returns = PyTreeDict({policy: jnp.array(returns) for policy, returns in by_policy.items()})
        return MultiPolicyEvaluateMetric(**fields, policy_returns=policy_returns)

    def frames(self, agent_state: AgentState, key: Key, max_steps: int) -> Iterator[np.ndarray]:
        raise RenderError(f"{self._name} is in control of its episodes: none can be played to render it.")

    def close(self) -> None:
        """Close nothing."""
