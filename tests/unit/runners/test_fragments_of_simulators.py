"""Fragments of envs that fill theirs at their own pace: complete, in order, counted, and never waited for."""

import itertools
from collections import Counter
from collections.abc import Iterator
from typing import Any

import gymnasium
import jax
import numpy as np
import pytest

from rookery.agents.policy import PolicyAgent
from rookery.networks.policy import PolicyConfig
from rookery.runners.envs.base_env import End
from rookery.runners.envs.external import ExternalEnv
from rookery.runners.envs.external_base_env import ExternalBaseEnv
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from tests.runner_envs import FakeTime, StaggeredEnvs, count_rows, make_runner, rows_of


def runner_of(*lengths: int, seed: int = 0, **settings: object) -> EnvRunner:
    env = StaggeredEnvs(lengths, np.random.default_rng(seed), is_external=True)
    return make_runner(env, rollout_fragment_length=8, **{"num_fragments": 3} | settings)


def samples_of(runner: EnvRunner, number: int) -> Iterator[Sample]:
    for _ in range(number):
        yield runner.sample()
        assert runner.ledger.is_exact


@pytest.mark.parametrize("lengths", [(5,), (3, 30), (4, 7, 11, 2, 9, 9, 9)])
def test_samples_are_whole_fragments_of_whoever_is_ready(lengths: tuple[int, ...]) -> None:
    samples = list(samples_of(runner_of(*lengths), 10))
    for sample in samples:
        batch = sample.batch.batches.default
        assert batch.rewards.shape == (8, 3)
        assert sample.env_steps == len(rows_of(sample)) == 24
        for column in range(3):
            rows = [row for row in rows_of(sample) if row.column == column]
            for row, later in itertools.pairwise(rows):
                assert later.obs == row.obs  # one env
                assert later.t == (row.t + 1 if row.end is End.RUNNING else 0)
    assert set(Counter(count_rows(samples)).values()) == {1}


def test_slow_simulators_are_not_waited_for_and_lose_nothing() -> None:
    runner = runner_of(1000, 1000, 1000)
    all_rows = sorted(count_rows(list(samples_of(runner, 20))))
    for episode, env in {(episode, env) for episode, env, _ in all_rows}:
        times = [t for number, _, t in all_rows if number == episode]
        assert times == list(range(len(times))), f"rows of env {env} are missing"


def test_every_row_names_the_version_that_acted() -> None:
    runner = runner_of(5, 5)
    state = runner.policies["default"].agent.init(*runner.spaces_of(), jax.random.key(0))
    for version in (4, 5, 9):
        runner.set_agent_states(state, version)
        versions = runner.sample().batch.batches.default.extras.env_extras.version
        assert versions.max() == version
        assert (np.diff(versions, axis=0) >= 0).all()


def test_fragments_with_rows_that_are_too_old_are_discarded_and_counted() -> None:
    runner = runner_of(5, 5, 5, 5, max_age=1)
    state = runner.policies["default"].agent.init(*runner.spaces_of(), jax.random.key(0))
    for version in range(10, 60, 5):
        runner.set_agent_states(state, version)
        versions = runner.sample().batch.batches.default.extras.env_extras.version
        assert versions.min() >= version - 1
        assert runner.ledger.is_exact
    assert runner.ledger.env_steps.discarded > 0
    assert runner.ledger.env_steps.discarded % 8 == 0


def test_a_sample_that_is_not_full_in_time_goes_on_later() -> None:
    time = FakeTime(tick=0.1)
    runner = runner_of(5, clock=time.clock, sleep=time.sleep)
    tries = [runner.sample_within(1.0) for _ in range(40)]
    found = [sample for sample in tries if sample is not None]
    assert 0 < len(found) < len(tries)
    assert [row.t for sample in found for row in rows_of(sample)] == [t % 5 for t in range(24 * len(found))]


def test_the_recurrent_state_before_each_fragment_is_known() -> None:
    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(4,), core="gru"))
    env = StaggeredEnvs((3, 11, 6), np.random.default_rng(1), is_external=True)
    runner = make_runner(env, agent, rollout_fragment_length=4, num_fragments=2)
    agent_state = agent.init(*runner.spaces_of(), jax.random.key(0))
    for _ in range(6):
        sample = runner.sample()
        batch, carry = sample.batch.batches.default, sample.first_carries["default"]
        log_prob = agent.replay(agent_state, batch, carry).log_prob(batch.extras.policy_extras.raw_action)
        np.testing.assert_allclose(batch.extras.policy_extras.log_prob, log_prob, atol=1e-5)


class Chooser(ExternalEnv):
    """Shows random observations and keeps the actions on them, of which it chooses every third itself."""

    def __init__(self, obs_space: gymnasium.Space, action_space: gymnasium.Space) -> None:
        super().__init__(obs_space, action_space)
        self.given = obs_space, action_space
        self.seen: list[tuple[Any, Any]] = []

    def run(self) -> None:
        obs_space, action_space = self.given
        episode = self.start_episode()
        for step in itertools.count():
            obs = obs_space.sample()
            if step % 3 == 2:
                self.log_action(episode, obs, action_space.sample(), log_prob=-1.0)
            else:
                self.seen.append((obs, self.get_action(episode, obs)))


MASKED = gymnasium.spaces.Dict(
    action_mask=gymnasium.spaces.Box(np.array([1, 0, 0], np.int8), np.ones(3, np.int8), dtype=np.int8),
    position=gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32),
)
BOUNDED = gymnasium.spaces.Box(np.array([-2.0, 5.0], np.float32), np.array([2.0, 9.0], np.float32))


@pytest.mark.parametrize(
    ("obs_space", "action_space"),
    [
        (MASKED, gymnasium.spaces.Discrete(3)),
        (MASKED["position"], gymnasium.spaces.MultiDiscrete([2, 5])),
        (MASKED["position"], BOUNDED),
    ],
)
def test_actions_of_every_space_are_allowed_and_stored(
    obs_space: gymnasium.Space, action_space: gymnasium.Space
) -> None:
    chooser = Chooser(obs_space, action_space)
    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(4,)))
    runner = make_runner(ExternalBaseEnv([chooser]), agent, rollout_fragment_length=9, num_fragments=2)
    batch = runner.sample().batch.batches.default
    runner.close()
    assert batch.extras.env_extras.logged.sum() == 6
    assert len(chooser.seen) >= 12
    for obs, action in chooser.seen:
        assert action_space.contains(np.asarray(action, action_space.dtype))
        if obs_space is MASKED:
            assert obs["action_mask"][action] == 1
