"""Groups of runners: described without training, asked for fragments, and merged column by column."""

from collections.abc import Callable
from typing import Any

import cloudpickle
import gymnasium
import jax
import numpy as np
import pytest

from rookery.agent import RandomAgent
from rookery.envs.config import EnvConfig, RunnerSettings
from rookery.errors import InvalidInputError
from rookery.runners.acting.policy_map import DEFAULT_POLICY
from rookery.runners.acting.roles import TRAIN, WARM_UP
from rookery.runners.envs import libraries
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.groups.group import (
    ActingSpec,
    Delivery,
    Description,
    EnvSpec,
    FragmentRequest,
    LocalRunners,
    Ready,
    RunnerFailed,
    RunnerSpec,
    RunnerStart,
    merge_columns,
)
from rookery.testing.misbehaving_envs import CountingEnv, FaultyEnv, raise_error
from tests.runner_envs import ParityAgent, SummingAgent, vectorized

CARTPOLE = EnvConfig("gymnasium/CartPole-v1", episode_length=20)
NUM_ENVS, NUM_STEPS = 3, 7


def make_group(agent: Any, num_runners: int = 1, env: EnvConfig = CARTPOLE, num_steps: int = NUM_STEPS) -> LocalRunners:
    group = LocalRunners(RunnerSpec(EnvSpec(env, NUM_ENVS), num_steps, seed=5), num_runners)
    start(group, ActingSpec({TRAIN: agent, WARM_UP: RandomAgent()}))
    return group


def start(group: LocalRunners, acting: ActingSpec, starts: Any = ()) -> None:
    group.start(acting, FragmentRequest(TRAIN, {}), starts)
    assert set(group.receive().values()) == {Ready()}


def request(agent: Any, group: LocalRunners, role: str = TRAIN) -> FragmentRequest:
    state = agent.init(*group.describe().spaces[SINGLE_AGENT], jax.random.key(0))
    return FragmentRequest(role, group.put({DEFAULT_POLICY: state}))


def sample_of(group: LocalRunners, index: int, asked: FragmentRequest) -> Any:
    group.send(index, asked)
    (reply,) = group.receive().values()
    assert isinstance(reply, Delivery)
    return reply.sample


@pytest.fixture
def num_made(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many environments were made, call by call."""
    made: list[int] = []
    make = libraries.make_host_env

    def counted(name: str, num_envs: int, **options: Any) -> Any:
        made.append(num_envs)
        return make(name, num_envs, **options)

    monkeypatch.setattr(libraries, "make_host_env", counted)
    return made


def test_the_environments_that_are_described_are_those_that_are_sampled(num_made: list[int]) -> None:
    agent = RandomAgent()
    group = make_group(agent)
    description = group.describe()
    assert description.name == "gymnasium/CartPole-v1"
    assert not description.is_multi_agent
    assert num_made == [NUM_ENVS]
    sample_of(group, 0, request(agent, group))
    assert num_made == [NUM_ENVS]
    group.close()


def test_a_group_that_is_given_a_description_starts_no_environment_before_it_is_asked(num_made: list[int]) -> None:
    spec = RunnerSpec(EnvSpec(CARTPOLE, NUM_ENVS), NUM_STEPS, seed=5)
    known = Description("CartPole", {SINGLE_AGENT: (None, None)})  # type: ignore[dict-item]
    group = LocalRunners(spec, description=known)
    assert group.describe() is known
    group.close()
    assert num_made == []


@pytest.mark.parametrize("agent", [RandomAgent(), SummingAgent()], ids=["feedforward", "recurrent"])
def test_merged_columns_are_those_of_one_call_per_runner_in_slot_order(agent: Any) -> None:
    group, alone = make_group(agent, num_runners=3), make_group(agent, num_runners=3)
    asked = request(agent, group)
    for _ in range(3):
        for index in range(3):
            group.send(index, asked)
        replies = group.receive()
        assert list(replies) == [0, 1, 2]
        parts = [
            (reply.sample.batch.batches.default, reply.sample.first_carries["default"]) for reply in replies.values()
        ]
        trajectory, first_carry = merge_columns(parts)
        assert trajectory.rewards.shape == (NUM_STEPS, 3 * NUM_ENVS)
        one_by_one = {index: sample_of(alone, index, asked) for index in (2, 0, 1)}
        for index in range(3):
            mine = slice(index * NUM_ENVS, (index + 1) * NUM_ENVS)
            expected = one_by_one[index].batch.batches.default
            jax.tree.map(lambda leaf, want: np.testing.assert_array_equal(leaf[:, mine], want), trajectory, expected)  # noqa: B023
            carry = one_by_one[index].first_carries["default"]
            jax.tree.map(lambda leaf, want: np.testing.assert_array_equal(leaf[mine], want), first_carry, carry)  # noqa: B023
    group.close()
    alone.close()


def test_a_runner_reports_the_observations_that_were_clipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(VectorBaseEnv, "num_clipped", 3)
    group = make_group(agent := RandomAgent())
    group.send(0, request(agent, group))
    (reply,) = group.receive().values()
    group.close()
    assert isinstance(reply, Delivery)
    assert reply.report.counts["obs_clipped"] == 3


def test_runners_of_a_group_have_their_own_seeds() -> None:
    agent = RandomAgent()
    group = make_group(agent, num_runners=2, num_steps=30)
    first, second = (sample_of(group, index, request(agent, group)) for index in range(2))
    seeds = [{episode.seed for episode in sample.episodes} for sample in (first, second)]
    assert seeds[0]
    assert not seeds[0] & seeds[1]
    group.close()


def test_a_spec_survives_pickling_and_makes_the_same_runner() -> None:
    agent = RandomAgent()
    spec = RunnerSpec(EnvSpec(CARTPOLE, NUM_ENVS), NUM_STEPS, seed=5, acting=ActingSpec({TRAIN: agent}))
    again = cloudpickle.loads(cloudpickle.dumps(spec))
    assert (again.envs, again.rollout_length, again.seed) == (spec.envs, spec.rollout_length, spec.seed)
    samples = []
    for one in (spec, again):
        group = LocalRunners(one)
        start(group, one.acting)
        samples.append(sample_of(group, 0, request(agent, group)))
        group.close()
    jax.tree.map(np.testing.assert_array_equal, samples[1].batch, samples[0].batch)


def test_replies_and_requests_survive_pickling() -> None:
    agent = ParityAgent()
    group = make_group(agent)
    asked = cloudpickle.loads(cloudpickle.dumps(request(agent, group)))
    group.send(0, asked)
    (reply,) = group.receive().values()
    again = cloudpickle.loads(cloudpickle.dumps(reply))
    jax.tree.map(np.testing.assert_array_equal, again.sample.batch, reply.sample.batch)
    group.close()


def test_the_agent_of_another_role_takes_over_within_an_episode() -> None:
    agent = ParityAgent()
    group = make_group(agent, num_steps=1)
    sample_of(group, 0, request(agent, group))
    sample = sample_of(group, 0, request(RandomAgent(), group, WARM_UP))
    assert sample.batch.batches.default.extras.env_extras.t.tolist() == [[1] * NUM_ENVS]
    assert sample.env_steps == NUM_ENVS
    group.close()


def test_a_runner_goes_on_from_a_state_with_seeds_that_were_not_used() -> None:
    agent = RandomAgent()
    group = make_group(agent, num_steps=40)
    group.send(0, request(agent, group))
    (before,) = group.receive().values()
    group.close()
    start(group, ActingSpec({TRAIN: agent}), [RunnerStart(before.report.state)])
    after = sample_of(group, 0, request(agent, group))
    assert not {episode.seed for episode in before.sample.episodes} & {episode.seed for episode in after.episodes}  # type: ignore[union-attr]
    last_number = max(episode.number for episode in before.sample.episodes)  # type: ignore[union-attr]
    assert min(episode.number for episode in after.episodes) > last_number
    group.close()


def test_a_runner_that_delivered_nothing_is_replaced_by_one_with_other_seeds_and_random_numbers() -> None:
    agent = RandomAgent()
    group = make_group(agent, num_steps=40)
    group.send(0, request(agent, group))
    (before,) = group.receive().values()
    group.rebuild(0, RunnerStart(None, num_fragments=1), FragmentRequest(TRAIN, {}))
    assert group.receive() == {0: Ready()}
    after = sample_of(group, 0, request(agent, group))
    assert not {episode.seed for episode in before.sample.episodes} & {episode.seed for episode in after.episodes}  # type: ignore[union-attr]
    actions = [sample.batch.batches.default.actions for sample in (before.sample, after)]  # type: ignore[union-attr]
    assert not np.array_equal(*actions)
    group.close()


@pytest.fixture
def envs_are(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], gymnasium.Env]], None]:
    def envs_are(make_env: Callable[[int], gymnasium.Env]) -> None:
        monkeypatch.setattr(libraries, "make_host_env", lambda name, num_envs, **_: vectorized(make_env, num_envs))

    return envs_are


def test_a_runner_without_envs_is_a_value_that_can_be_pickled_and_raised(envs_are: Any) -> None:
    envs_are(lambda index: FaultyEnv(raise_error, at_step=1))
    env = EnvConfig("gymnasium/CartPole-v1", runner=RunnerSettings(max_restarts=0))
    agent = ParityAgent()
    group = make_group(agent, env=env)
    group.send(0, request(agent, group))
    (reply,) = group.receive().values()
    assert isinstance(reply, RunnerFailed)
    again = cloudpickle.loads(cloudpickle.dumps(reply))
    assert str(again.error()).startswith("all 3 environments are lost; the first fault: env 0")
    assert "Traceback" in str(again.error())
    assert again.report.num_lost_envs == again.report.counts["raised"] == NUM_ENVS
    group.close()


def test_a_slot_takes_one_request_at_a_time(envs_are: Any) -> None:
    envs_are(lambda index: CountingEnv())
    agent = ParityAgent()
    group = make_group(agent)
    group.send(0, request(agent, group))
    with pytest.raises(InvalidInputError, match="runner 0 has a request under way"):
        group.send(0, request(agent, group))
    group.close()
    assert group.receive() == {}
