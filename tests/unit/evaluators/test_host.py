"""Evaluations and populations on host environments of which some fail: the others go on."""

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.envs.config import EnvConfig, RunnerSettings
from rookery.evaluators.host import HostEvaluateMetric, HostEvaluator
from rookery.evaluators.host_population import HostPopulation, population_envs
from rookery.evaluators.population_player import PopulationSpec
from rookery.runners.envs import libraries
from rookery.runners.faults import EnvFaultError
from rookery.runners.groups.group import Description, LocalRunners, RunnerSpec
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, raise_error
from tests.runner_envs import FakeTime, ParityAgent, vectorized

NUM_ENVS, LENGTH = 3, 5
Fault = Callable[[int, int | None], None]


class Witness(CountingEnv):
    """Notes when its episodes end; `fault` may raise, given the index of the env and the step, None at a reset."""

    def __init__(self, index: int, fault: Fault, note: Callable[[int], None]) -> None:
        super().__init__(LENGTH)
        self.index, self.fault, self.note = index, fault, note

    def reset(self, **options: Any) -> tuple[Any, Any]:
        self.fault(self.index, None)
        return super().reset(**options)

    def step(self, action: Any) -> Any:
        self.fault(self.index, self.num_steps)
        result = super().step(action)
        if self.num_steps == LENGTH:
            self.note(self.index)
        return result


def first_tries_fail(index: int, step: int | None, num_failures: int) -> Fault:
    """Fail in one env at one step, `num_failures` times."""
    num_left = [num_failures]

    def fault(env: int, at: int | None) -> None:
        if (env, at) == (index, step) and num_left[0]:
            num_left[0] -= 1
            raise ValueError("bad leg")

    return fault


@pytest.fixture
def times() -> FakeTime:
    return FakeTime()


@pytest.fixture
def ended() -> dict[int, list[float]]:
    """When the episodes of each env ended."""
    return {index: [] for index in range(NUM_ENVS)}


@pytest.fixture
def env_with(
    monkeypatch: pytest.MonkeyPatch, times: FakeTime, ended: dict[int, list[float]]
) -> Callable[..., EnvConfig]:
    """Return the config of envs that fail like this."""

    def env_with(fault: Fault, max_restarts: int = 5) -> EnvConfig:
        def make_env(index: int) -> gymnasium.Env:
            return Witness(index, fault, lambda env: ended[env].append(times.now))

        monkeypatch.setattr(libraries, "make_host_env", lambda name, num_envs, **_: vectorized(make_env, num_envs))
        return EnvConfig("gymnasium/CartPole-v1", runner=RunnerSettings(max_restarts=max_restarts))

    return env_with


def evaluate(env: EnvConfig, times: FakeTime, num_episodes: int) -> HostEvaluateMetric:
    evaluator = HostEvaluator(env, ParityAgent(), NUM_ENVS, clock=times.clock, sleep=times.sleep)
    return evaluator.evaluate(AgentState(params=jnp.zeros(())), jax.random.key(0), num_episodes)


@pytest.fixture
def population_in(times: FakeTime) -> Callable[[EnvConfig], HostPopulation]:
    def population_in(env: EnvConfig) -> HostPopulation:
        description = Description.of(vectorized(lambda index: CountingEnv(), 1))
        group = LocalRunners(RunnerSpec(population_envs(env, NUM_ENVS), 1, seed=0), description=description)
        spec = PopulationSpec(env, ParityAgent(), explore=False, track_obs=False, clock=times.clock, sleep=times.sleep)
        return HostPopulation(group, spec)

    return population_in


def play(host: HostPopulation) -> Any:
    return host.play(AgentState(params=jnp.zeros(())), jnp.zeros(6), jax.random.key(0), 2)


FAULTS = pytest.mark.parametrize("step", [None, 2], ids=["at reset", "within the episode"])


@FAULTS
def test_a_failing_env_does_not_hold_up_the_others_of_an_evaluation(
    env_with: Any, times: FakeTime, ended: dict[int, list[float]], step: int | None
) -> None:
    result = evaluate(env_with(first_tries_fail(0, step, num_failures=4)), times, num_episodes=9)
    assert ended[1] == ended[2] == [0.0] * 3
    np.testing.assert_allclose(times.naps, [0.1, 0.2, 0.4])
    np.testing.assert_allclose(ended[0], [0.7] * 3)
    np.testing.assert_array_equal(result.episode_returns, np.full(9, LENGTH))
    assert result.num_left_out == 0


@FAULTS
def test_a_failing_env_does_not_hold_up_the_others_of_a_population(
    env_with: Any, population_in: Any, times: FakeTime, ended: dict[int, list[float]], step: int | None
) -> None:
    host = population_in(env_with(first_tries_fail(0, step, num_failures=4)))
    episodes = play(host)
    host.close()
    np.testing.assert_array_equal(episodes.episode_returns, np.full((6, 2), LENGTH))
    assert len(ended[1]) + len(ended[2]) >= 10
    assert not any(ended[1] + ended[2])
    assert host.report()["faults/raised"] >= 2


def test_the_others_play_the_episodes_of_an_env_that_is_lost(
    env_with: Any, times: FakeTime, ended: dict[int, list[float]]
) -> None:
    result = evaluate(env_with(first_tries_fail(0, None, 2), max_restarts=1), times, num_episodes=8)
    assert [len(ended[env]) for env in range(NUM_ENVS)] == [0, 5, 3]
    np.testing.assert_array_equal(result.episode_returns, np.full(8, LENGTH))
    assert result.num_left_out == 0


def test_an_evaluation_without_any_env_left_has_no_result_and_says_why(
    env_with: Any, times: FakeTime, caplog: pytest.LogCaptureFixture
) -> None:
    def fault(env: int, step: int | None) -> None:
        raise ValueError("no display")

    result = evaluate(env_with(fault, max_restarts=1), times, num_episodes=4)
    assert len(result.episode_returns) == 0
    assert result.num_left_out == 4
    assert result.summary("eval/") == {}
    (message,) = caplog.messages
    assert message.startswith("The evaluation is incomplete: 4 of 4 episodes")
    assert "all 3 environments are lost; the first fault: env 0" in message


def test_environments_that_cannot_be_made_are_tried_again_as_often_as_they_are_restarted(
    env_with: Any, times: FakeTime, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    env = env_with(lambda env, step: None, max_restarts=2)
    make, num_left = libraries.make_host_env, [2]

    def make_later(*args: Any, **kwargs: Any) -> Any:
        if num_left[0]:
            num_left[0] -= 1
            raise ValueError("no display")
        return make(*args, **kwargs)

    monkeypatch.setattr(libraries, "make_host_env", make_later)
    result = evaluate(env, times, num_episodes=4)
    assert len(result.episode_returns) == 4
    np.testing.assert_allclose(times.naps, [0.0, 0.1])
    num_left[0] = 3
    result = evaluate(env, times, num_episodes=4)
    assert len(result.episode_returns) == 0
    assert result.num_left_out == 4
    assert caplog.messages[-1].endswith("the environments cannot be made: no display")


def test_invalid_data_can_end_an_evaluation(env_with: Any, times: FakeTime, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Witness, "step", lambda self, action: (self._obs(), float("nan"), False, False, {}))
    env = env_with(lambda env, step: None)
    env = EnvConfig(env.name, runner=RunnerSettings(on_invalid="raise"))
    with pytest.raises(EnvFaultError, match=r"reward is nan.*on_invalid='raise' ends the run"):
        evaluate(env, times, num_episodes=4)


def test_an_env_that_nobody_restarts_does_not_make_the_others_spin(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowEnv(CountingEnv):
        def step(self, action: Any) -> Any:
            time.sleep(0.1)
            return super().step(action)

    envs = [partial(FaultyEnv, raise_error, at_step=1), partial(SlowEnv, 4)]
    base_env = vectorized(lambda index: envs[index](), 2, processes=True)
    polls = []

    def counted_poll(timeout: float | None = None, poll: Callable = base_env.poll) -> Any:
        polls.append(timeout)
        return poll(timeout)

    monkeypatch.setattr(base_env, "poll", counted_poll)
    evaluator = HostEvaluator(
        EnvConfig("gymnasium/CartPole-v1", runner=RunnerSettings(max_restarts=0, processes=True)),
        ParityAgent(),
        num_envs=2,
        opened=base_env,
    )
    result = evaluator.evaluate(ParityAgent().init(*base_env.spaces["agent"], jax.random.key(0)), jax.random.key(0), 2)
    evaluator.close()
    assert (result.episode_lengths.tolist(), result.num_left_out) == ([4], 1)
    assert len(polls) < 40


def test_a_slow_step_is_rendered_once_and_costs_no_frame(monkeypatch: pytest.MonkeyPatch) -> None:
    class SlowEnv(CountingEnv):
        metadata = {"render_modes": ["rgb_array"]}  # noqa: RUF012

        def step(self, action: Any) -> Any:
            time.sleep(0.3 if self.num_steps == 1 else 0.0)
            return super().step(action)

        def render(self) -> np.ndarray:
            return np.full((2, 2, 3), self.num_steps, np.uint8)

    def make_rendered_env(env: EnvConfig) -> Any:
        return vectorized(lambda index: SlowEnv(4), 1, processes=True, step_timeout=1.0)

    monkeypatch.setattr("rookery.evaluators.evaluation_player.make_rendered_env", make_rendered_env)
    agent = ParityAgent()
    evaluator = HostEvaluator(EnvConfig("gymnasium/CartPole-v1"), agent, num_envs=1)
    frames = evaluator.frames(AgentState(params=jnp.zeros(())), jax.random.key(0), max_steps=3)
    assert [int(frame[0, 0, 0]) for frame in frames] == [0, 1, 2, 3]
