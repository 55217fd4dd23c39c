"""A runner returns what a bare loop over `env.step` gives, in the form of a compiled rollout."""

import itertools
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import RandomAgent
from rookery.agents.actor_critic import ActorCriticAgent
from rookery.envs import AutoresetMode, create_env
from rookery.networks import ActorCriticConfig
from rookery.rollout import RolloutSource
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import Sample
from rookery.sample_batch import SampleBatch
from tests.runner_envs import ScriptedEnv, everyone, in_dicts, make_runner, vectorized


class DictObsEnv(gymnasium.Env):
    """A walk of 3 to 12 steps, seen as a dict of a position, a kind and a pair."""

    def __init__(self) -> None:
        spaces = gymnasium.spaces
        self.observation_space = spaces.Dict(
            {
                "position": spaces.Box(-np.inf, np.inf, (2,), np.float32),
                "kind": spaces.Discrete(3),
                "pair": spaces.Tuple((spaces.MultiBinary(2), spaces.Box(0, 255, (1, 2), np.uint8))),
            }
        )
        self.action_space = spaces.Box(-1.0, 1.0, (2,), np.float32)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self._position = self.np_random.normal(size=2).astype(np.float32)
        self._num_left = int(self.np_random.integers(3, 13))
        return self._obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self._position = self._position + np.asarray(action, np.float32)
        self._num_left -= 1
        is_over = self._num_left == 0
        is_truncated = bool(is_over and self._position[0] > 0)
        return self._obs(), float(self._position.sum()), is_over and not is_truncated, is_truncated, {}

    def _obs(self) -> dict[str, Any]:
        bits = self.np_random.integers(0, 2, 2).astype(np.int8)
        pixels = self.np_random.integers(0, 256, (1, 2)).astype(np.uint8)
        return {"position": self._position.copy(), "kind": int(self.np_random.integers(3)), "pair": (bits, pixels)}


def make_cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


def assert_same(stored: Any, shown: Any) -> None:
    assert jax.tree.structure(stored) == jax.tree.structure(shown)
    for left, right in zip(jax.tree.leaves(stored), jax.tree.leaves(shown), strict=True):
        np.testing.assert_array_equal(left, right)


def row_of(tree: Any, t: int, lane: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[t, lane], plain(tree))


def plain(tree: Any) -> Any:
    """Take trees of whatever dicts to trees of plain ones."""
    if isinstance(tree, dict):
        return {name: plain(value) for name, value in tree.items()}
    return tuple(map(plain, tree)) if isinstance(tree, tuple) else tree


@pytest.mark.parametrize("make_env", [make_cartpole, DictObsEnv])
@pytest.mark.parametrize("has_mapping", [False, True])
def test_a_runner_gives_the_transitions_of_a_bare_loop(make_env: Any, has_mapping: bool) -> None:
    num_envs, fragment_length, num_samples = 3, 17, 4
    seeds: list[list[int]] = [[] for _ in range(num_envs)]

    class Noted(gymnasium.Wrapper):
        def __init__(self, env: gymnasium.Env, index: int) -> None:
            super().__init__(env)
            self.index = index

        def reset(self, *, seed: int | None = None, options: dict | None = None) -> Any:
            assert seed is not None
            seeds[self.index].append(seed)
            return super().reset(seed=seed, options=options)

    runner = make_runner(
        vectorized(lambda index: Noted(make_env(), index), num_envs=num_envs),
        RandomAgent(),
        (lambda agent, episode: "default") if has_mapping else None,
        rollout_fragment_length=fragment_length,
        seed=3,
    )
    samples = [runner.sample() for _ in range(num_samples)]
    metrics = {episode.number: episode for sample in samples for episode in sample.episodes}
    num_ends = 0
    for lane in range(num_envs):
        env = make_env()
        episode_seeds = iter(seeds[lane])
        obs, _ = env.reset(seed=next(episode_seeds))
        length, episode_return = 0, 0.0
        for sample in samples:
            batch = sample.batch.batches.default
            extras = batch.extras.env_extras
            assert batch.rewards.shape == (fragment_length, num_envs)
            for t in range(fragment_length):
                assert_same(row_of(batch.obs, t, lane), obs)
                action = row_of(batch.actions, t, lane)
                obs, reward, terminated, truncated, _ = env.step(int(action) if np.ndim(action) == 0 else action)
                episode_return += float(reward)
                assert_same(row_of(extras.ori_obs, t, lane), obs)
                assert_same(row_of(batch.next_obs, t, lane), obs)
                assert batch.rewards[t, lane] == np.float32(reward)
                assert extras.t[t, lane] == length
                length += 1
                assert extras.steps[t, lane] == length
                assert extras.episode_return[t, lane] == np.float32(episode_return)
                flags = (extras.termination[t, lane], extras.truncation[t, lane], batch.dones[t, lane])
                assert flags == (terminated, truncated and not terminated, terminated or truncated)
                assert extras.autoreset[t, lane] == 0
                if terminated or truncated:
                    metric = metrics[int(extras.episode[t, lane])]
                    assert (metric.episode_length, metric.episode_return) == (length, episode_return)
                    obs, _ = env.reset(seed=next(episode_seeds))
                    length, episode_return = 0, 0.0
                    num_ends += 1
    assert num_ends == len(metrics) > 5


# Recurrent agents.


def make_recurrent_runner(core: str, fragment_length: int, **settings: Any) -> tuple[EnvRunner, ActorCriticAgent, Any]:
    config = ActorCriticConfig(hidden_sizes=(8,), core=core, core_size=8, output_init_scale=1.0)
    agent = ActorCriticAgent(config=config)
    base_env = settings.pop("base_env", None) or vectorized(lambda index: make_cartpole(), num_envs=3)
    runner = make_runner(base_env, agent, rollout_fragment_length=fragment_length, **settings)
    agent_state = agent.init(*runner.spaces_of(agent=next(iter(base_env.spaces))), jax.random.key(0))
    return runner, agent, agent_state


def check_replay(agent: ActorCriticAgent, agent_state: Any, samples: list[Sample]) -> None:
    @jax.jit
    def replay(batch: SampleBatch, carry: Any) -> tuple[Any, Any]:
        distribution, values = agent.replay(agent_state, batch, carry)
        return distribution.log_prob(batch.extras.policy_extras.raw_action), values

    for sample in samples:
        batch = sample.batch.batches.default
        log_prob, values = replay(jax.tree.map(jnp.asarray, batch), sample.first_carries["default"])
        is_live = batch.extras.env_extras.autoreset == 0
        policy_extras = batch.extras.policy_extras
        np.testing.assert_allclose(policy_extras.log_prob[is_live], np.asarray(log_prob)[is_live], atol=1e-5)
        np.testing.assert_allclose(policy_extras.value[is_live], np.asarray(values)[is_live], atol=1e-5)


@pytest.mark.parametrize("core", ["gru", "lstm"])
def test_replaying_a_sample_gives_the_same_log_probabilities(core: str) -> None:
    runner, agent, agent_state = make_recurrent_runner(core, fragment_length=12)
    samples = [runner.sample() for _ in range(8)]
    check_replay(agent, agent_state, samples)
    dones = np.concatenate([sample.batch.batches.default.dones for sample in samples])
    assert dones.sum() > 4
    assert any(np.any(leaf) for leaf in jax.tree.leaves(samples[-1].first_carries["default"]))


def test_replaying_agents_of_one_env_gives_the_same_log_probabilities() -> None:
    base_env = in_dicts(ScriptedEnv(everyone("abc", 7), agents="abc"), ScriptedEnv(everyone("ab", 5), agents="abc"))
    runner, agent, agent_state = make_recurrent_runner("gru", fragment_length=4, base_env=base_env)
    check_replay(agent, agent_state, [runner.sample() for _ in range(6)])


def test_replaying_whole_episodes_gives_the_same_log_probabilities() -> None:
    runner, agent, agent_state = make_recurrent_runner("gru", fragment_length=12, batch_mode="complete_episodes")
    check_replay(agent, agent_state, [runner.sample() for _ in range(3)])


def test_the_memory_after_a_step_is_the_one_before_the_next() -> None:
    runner, _, _ = make_recurrent_runner("gru", fragment_length=8)
    samples = [runner.sample() for _ in range(3)]
    for sample, following in itertools.pairwise(samples):
        batch = sample.batch.batches.default
        after = jax.tree.map(lambda leaf: leaf[-1], batch.extras.policy_extras.next_carry)
        jax.tree.map(np.testing.assert_array_equal, after, following.first_carries["default"])


# The form of a compiled rollout.


@pytest.mark.parametrize("core", [None, "gru"])
def test_a_sample_has_the_fields_of_a_compiled_rollout(core: str | None) -> None:
    agent = ActorCriticAgent(config=ActorCriticConfig(hidden_sizes=(8,), core=core, core_size=8))
    env = create_env("classic/cartpole", parallel=3, autoreset_mode=AutoresetMode.ENVPOOL, record_ori_obs=True)
    agent_state = agent.init(env.obs_space, env.action_space, jax.random.key(0))
    source = RolloutSource(env=env, agent=agent, rollout_length=5)
    experience, _ = jax.eval_shape(
        source.collect, agent_state, source.init(jax.random.split(jax.random.key(0), 3)), jax.random.key(1)
    )
    runner = make_runner(vectorized(lambda index: make_cartpole(), num_envs=3), agent, rollout_fragment_length=5)
    sample = runner.sample()
    compiled, host = fields_of(experience.trajectory), fields_of(sample.batch.batches.default)
    for name in ("t", "episode", "end", "version", "logged"):
        del host[f"extras.env_extras.{name}"]
    assert host == compiled
    carry = sample.first_carries["default"]
    assert jax.tree.structure(carry) == jax.tree.structure(experience.first_carry)
    assert [leaf.shape for leaf in jax.tree.leaves(carry)] == [
        leaf.shape for leaf in jax.tree.leaves(experience.first_carry)
    ]


def fields_of(batch: SampleBatch) -> dict[str, tuple]:
    """Shape and dtype of every leaf, by its place in the tree."""
    leaves, _ = jax.tree_util.tree_flatten_with_path(batch)
    return {
        jax.tree_util.keystr(path, simple=True, separator="."): (leaf.shape, str(leaf.dtype)) for path, leaf in leaves
    }
