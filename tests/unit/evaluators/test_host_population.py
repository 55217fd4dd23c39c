"""Evolution on host environments: the fitness of an individual equals that of a bare loop over its environment."""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.map_elites import MAPElitesWorkflow
from rookery.algorithms.evolution.nsga2 import NSGA2Workflow
from rookery.algorithms.evolution.open_es import OpenESWorkflow
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.evaluators import host_population
from rookery.evaluators.host import HostEvaluator
from rookery.evaluators.host_population import HostPopulation, population_envs
from rookery.evaluators.measures import Measure
from rookery.evaluators.population_player import PopulationSpec
from rookery.learning.counter import Counter
from rookery.runners.envs import libraries
from rookery.runners.envs.autoreset import AutoresetBaseEnv
from rookery.runners.envs.base_env import Actions, BaseEnv, EnvOutputs
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import VectorEnv
from rookery.runners.faults import EnvFaultError, FaultKind
from rookery.runners.groups.episodes import EpisodesRequest, EvaluationRequest, RandomRequest
from rookery.runners.groups.group import LocalRunners, RunnerSpec
from rookery.runners.seeds import episode_seed
from rookery.sample_batch import SampleBatch
from rookery.testing.misbehaving_envs import FaultyEnv, kill_process
from rookery.types import PyTreeDict
from tests.runner_envs import FakeTime
from tests.unreliable_runners import Fails, UnreliableHosts

POPULATION_SIZE, NUM_EPISODES = 6, 2
TIME_LIMIT = 12


class Diary(gymnasium.Env):
    """Logs seeds and observations. An episode has 2 to 8 steps, by its start; the action that matches the sign gives 1.

    `fault` may raise, given the seed of the episode and its step; the step of a reset is None.
    """

    seeds: ClassVar[list[int | None]] = []
    acted_on: ClassVar[list[np.ndarray]] = []
    fault: ClassVar[Callable[[int | None, int | None], None] | None] = None
    num_open: ClassVar[int] = 0

    def __init__(self) -> None:
        self.observation_space = gymnasium.spaces.Box(-20.0, 20.0, (2,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        Diary.num_open += 1

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[Any, dict]:
        super().reset(seed=seed)
        self.seed, self.start, self.count = seed, float(self.np_random.uniform(-1, 1)), 0
        self.seeds.append(seed)
        self.check(None)
        return self.obs(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        self.check(self.count)
        self.acted_on.append(self.obs())
        self.count += 1
        reward = float(action == (self.start > 0)) + 0.01 * self.count
        is_over = self.count >= 2 + int(6 * abs(self.start))
        info = {"count": {"squared": self.count**2}} | ({"score": 10.0 * self.start} if is_over else {})
        return self.obs(), reward, is_over, False, info

    def check(self, step: int | None) -> None:
        if Diary.fault is not None:
            Diary.fault(self.seed, step)

    def obs(self) -> np.ndarray:
        return np.array([self.start, self.count], np.float32)

    def close(self) -> None:
        Diary.num_open -= 1


@pytest.fixture(autouse=True)
def diary(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Diary]]:
    for name, value in (("seeds", []), ("acted_on", []), ("fault", None), ("num_open", 0)):
        monkeypatch.setattr(Diary, name, value)
    gymnasium.register("Diary-v0", entry_point=Diary)
    yield Diary
    gymnasium.registry.pop("Diary-v0")


Make = Callable[..., Any]


@pytest.fixture
def make() -> Iterator[Make]:
    """Build workflows, which are closed at the end."""
    workflows = []

    def make(
        env: dict | None = None,
        network: dict | None = None,
        train: dict | None = None,
        kind: Any = OpenESWorkflow,
        **agent: Any,
    ) -> Any:
        agent = {
            "population_size": POPULATION_SIZE,
            "num_episodes": NUM_EPISODES,
            "num_lanes": 4,
            "network": {"hidden_sizes": [8], "core_size": 4, **(network or {})},
            **({"noise_std": 2.0} if kind is OpenESWorkflow else {}),
            **agent,
        }
        config = {"agent": agent, "env": {"name": "gymnasium/Diary-v0", "episode_length": TIME_LIMIT, **(env or {})}}
        common = {"evaluation": {"num_episodes": 3}, "total_timesteps": 400, "recorders": []}
        workflows.append(kind.build_from_config(config | common | (train or {})))
        return workflows[-1]

    yield make
    for workflow in workflows:
        workflow.close()


def asked_of(workflow: Any) -> tuple[Any, Any, Any]:
    """The agents of the first generation, and the key of their episodes."""
    state, population, key = workflow.training._ask_all(workflow.init(workflow.make_key()))
    return state.agent_state, population, key


def play(workflow: Any) -> Any:
    """The episodes of the first generation."""
    return workflow.training.player.play(*asked_of(workflow), NUM_EPISODES)


def seed_of(key: Any, individual: int, episode: int, num_tries_before: int = 0) -> int:
    bits = int(jax.random.bits(jax.random.split(key)[0]))
    num_jobs = POPULATION_SIZE * NUM_EPISODES
    return episode_seed(bits, 0, num_tries_before * num_jobs + individual * NUM_EPISODES + episode)


def episodes_of_a_bare_loop(workflow: Any, env_name: str) -> list[list[tuple]]:
    """Play one episode after the other, each in an environment of its own; return action, obs, reward, info of all."""
    agent_state, population, key = asked_of(workflow)
    act = jax.jit(workflow.agent.evaluate_actions)
    episodes = []
    for individual, episode in np.ndindex(POPULATION_SIZE, NUM_EPISODES):
        env = gymnasium.make(env_name, max_episode_steps=TIME_LIMIT)
        mine = agent_state.replace(params=jax.tree.map(lambda leaf, i=individual: leaf[i], population))
        obs, _ = env.reset(seed=seed_of(key, individual, episode))
        carry, is_over, steps = workflow.agent.initial_carry(()), False, []
        while not is_over:
            start = jnp.float32(not steps)
            extras = PyTreeDict(policy_extras=PyTreeDict(carry=carry, episode_start=start), env_extras=PyTreeDict())
            action, policy_extras = act(mine, SampleBatch(obs=jnp.asarray(obs), extras=extras), jax.random.key(0))
            carry = policy_extras.get("carry", ())
            obs, reward, terminated, truncated, info = env.step(np.asarray(action))
            is_over = terminated or truncated
            steps.append((float(action), obs, reward, info))
        env.close()
        episodes.append(steps)
    return episodes


def actions_of_a_network(params: Any, obs: np.ndarray) -> int:
    """The greedy action of a policy of one hidden layer, in float64."""
    hidden, output = params.trunk.layers.hidden.hidden_0, params.head.output
    layers = [np.asarray(array, np.float64) for array in (hidden.kernel, hidden.bias, output.kernel, output.bias)]
    return int(np.argmax(np.tanh(obs @ layers[0] + layers[1]) @ layers[2] + layers[3]))


def no_faults_but(seeds: set[int], at_step: int | None) -> Callable[[int | None, int | None], None]:
    def fault(seed: int | None, step: int | None) -> None:
        if seed in seeds and step == at_step:
            raise ValueError("bad leg")

    return fault


@pytest.fixture
def envs_are(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[int], BaseEnv]], None]:
    """Let workflows play in the environments that a function of their number makes."""

    def envs_are(make_envs: Callable[[int], BaseEnv]) -> None:
        monkeypatch.setattr(libraries, "make_host_env", lambda name, num_envs, **kwargs: make_envs(num_envs))

    return envs_are


# Episodes.


@pytest.mark.parametrize("network", [{}, {"core": "gru"}], ids=["feedforward", "recurrent"])
@pytest.mark.parametrize("env_name", ["Diary-v0", "CartPole-v1"])
def test_returns_are_those_of_a_bare_loop_with_the_same_seeds(make: Make, env_name: str, network: dict) -> None:
    workflow = make(env={"name": f"gymnasium/{env_name}"}, network=network)
    episodes = play(workflow)
    expected = episodes_of_a_bare_loop(workflow, env_name)
    returns = [sum(reward for _, _, reward, _ in steps) for steps in expected]
    np.testing.assert_allclose(episodes.episode_returns.ravel(), returns, rtol=1e-6)
    np.testing.assert_array_equal(episodes.episode_lengths.ravel(), list(map(len, expected)))
    assert len(np.unique(episodes.episode_lengths)) > 2


def test_individuals_act_with_their_own_parameters(make: Make) -> None:
    workflow = make(env={"name": "gymnasium/CartPole-v1"})
    _, population, key = asked_of(workflow)
    env = gymnasium.make("CartPole-v1", max_episode_steps=TIME_LIMIT)
    lengths = np.zeros((POPULATION_SIZE, NUM_EPISODES))
    for individual, episode in np.ndindex(lengths.shape):
        params = jax.tree.map(lambda leaf, i=individual: leaf[i], population)
        obs, _ = env.reset(seed=seed_of(key, individual, episode))
        is_over = False
        while not is_over:
            obs, _, terminated, truncated, _ = env.step(actions_of_a_network(params, obs.astype(np.float64)))
            lengths[individual, episode] += 1
            is_over = terminated or truncated
    np.testing.assert_array_equal(play(workflow).episode_lengths, lengths)


@pytest.mark.parametrize(("core", "explore"), [("gru", False), (None, True)], ids=["recurrent", "explore"])
def test_the_number_of_environments_makes_no_difference(
    make: Make, request: pytest.FixtureRequest, core: str | None, explore: bool
) -> None:
    workflow = make(network={"core": core}, normalize_obs=True)
    asked = asked_of(workflow)
    request.getfixturevalue("optimized_programs")  # for playing alone, where rounding counts
    results = []
    for num_envs in (1, 5):
        with population_of(workflow, num_envs, explore=explore) as host:
            results.append(host.play(*asked, NUM_EPISODES))
    jax.tree.map(np.testing.assert_array_equal, *results)


@contextlib.contextmanager
def population_of(
    workflow: Any,
    num_envs: int = 4,
    num_runners: int = 1,
    chunk_size: int | None = None,
    explore: bool = True,
    measures: Sequence[str] = (),
) -> Iterator[HostPopulation]:
    env = workflow.settings.train.env
    group = LocalRunners(RunnerSpec(population_envs(env, num_envs), 1, seed=0), num_runners)
    parsed = tuple(map(Measure.parse, measures))
    spec = PopulationSpec(env, workflow.agent, explore, track_obs=True, measures=parsed)
    with contextlib.closing(HostPopulation(group, spec, chunk_size)) as host:
        yield host


@pytest.mark.parametrize("num_runners", [1, 4])
def test_neither_chunks_nor_runners_change_a_bit(make: Make, request: pytest.FixtureRequest, num_runners: int) -> None:
    workflow = make(normalize_obs=True, network={"core": "gru"})
    asked = asked_of(workflow)
    request.getfixturevalue("optimized_programs")
    measures = ["mean:action", "last:score"]
    with population_of(workflow, measures=measures) as alone:
        expected, report = alone.play(*asked, NUM_EPISODES), alone.report()
    assert expected.episode_returns.shape == expected.measures.shape[:2] == (POPULATION_SIZE, NUM_EPISODES)
    for chunk_size in (1, 4, POPULATION_SIZE, None):
        with population_of(workflow, 4, num_runners, chunk_size, measures=measures) as host:
            for _ in range(2):
                jax.tree.map(np.testing.assert_array_equal, host.play(*asked, NUM_EPISODES), expected)
            assert host.report() == report


class InTurns(BaseEnv):
    """Copies of `Diary`; only one at a time replies."""

    name = "in_turns"

    def __init__(self, num_envs: int) -> None:
        self.num_envs = num_envs
        self._copies = [VectorBaseEnv(VectorEnv.wrap(lambda index: Diary())) for _ in range(num_envs)]
        self._asked: list[int] = []

    @property
    def spaces(self) -> Any:
        return self._copies[0].spaces

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        env = self._asked.pop(0)
        polled = self._copies[env].poll()
        resets, over, stepped = ([env] * len(envs) for envs in (polled.resets, polled.over, polled.stepped))
        envs = np.full(len(polled.envs), env)
        return dataclasses.replace(polled, envs=envs, resets=resets, over=over, stepped=stepped)

    def send_actions(self, actions: Actions) -> None:
        for env, action in zip(actions.envs.tolist(), actions.actions, strict=True):
            self._copies[env].send_actions(Actions(np.array([0]), action[None]))
            self._asked.append(env)

    def try_reset(self, env: int, seed: int | None) -> None:
        self._copies[env].try_reset(0, seed)
        self._asked.append(env)

    def try_restart(self, env: int, seed: int | None) -> None:
        raise NotImplementedError


def test_recurrent_states_stay_while_other_individuals_act(make: Make, envs_are: Any) -> None:
    together = play(make(network={"core": "gru"}))
    envs_are(InTurns)
    in_turns = play(make(network={"core": "gru"}))
    jax.tree.map(np.testing.assert_array_equal, in_turns, together)


def test_sampled_actions_differ_from_greedy_ones(make: Make) -> None:
    greedy, sampled = (play(make(explore=explore)) for explore in (False, True))
    assert np.any(greedy.episode_returns != sampled.episode_returns)


def test_statistics_are_those_of_the_observations_that_were_acted_on(make: Make, diary: type[Diary]) -> None:
    workflow = make(normalize_obs=True)
    state = workflow.init(workflow.make_key())
    for _ in range(2):
        _, state = workflow.step(state)
        statistics, acted_on = state.agent_state.obs_preprocessor_state, np.array(diary.acted_on, np.float64)
        assert float(statistics.count.value) == len(acted_on) == int(state.env_steps)
        np.testing.assert_allclose(statistics.mean["obs"], acted_on.mean(axis=0), rtol=1e-5)
        np.testing.assert_allclose(statistics.std["obs"], acted_on.std(axis=0), rtol=1e-4)


def test_fixed_statistics_are_those_of_random_play(make: Make, diary: type[Diary]) -> None:
    workflow = make(normalize_obs=True, fixed_obs_statistics=True)
    state = workflow.init(workflow.make_key())
    statistics = state.agent_state.obs_preprocessor_state
    assert float(statistics.count.value) == 64 * 128
    np.testing.assert_allclose(statistics.mean["obs"], np.mean(diary.acted_on, axis=0), rtol=1e-4)
    _, state = workflow.step(state)
    jax.tree.map(np.testing.assert_array_equal, state.agent_state.obs_preprocessor_state, statistics)


def test_no_two_episodes_of_two_generations_have_the_same_seed(make: Make, diary: type[Diary]) -> None:
    workflow = make()
    diary.seeds.clear()
    _, state = workflow.step(workflow.init(workflow.make_key()))
    workflow.step(state)
    assert len(diary.seeds) == len(set(diary.seeds)) == 2 * POPULATION_SIZE * NUM_EPISODES
    assert diary.num_open == 4


def test_measures_are_those_of_a_bare_loop(make: Make) -> None:
    objectives = ["sum:reward", "mean:action", "last:obs.1", "sum:count.squared", "last:score"]
    workflow = make(kind=NSGA2Workflow, objectives=objectives)
    expected = [
        [
            sum(reward for _, _, reward, _ in steps),
            np.mean([action for action, _, _, _ in steps]),
            steps[-1][1][1],
            sum(info["count"]["squared"] for *_, info in steps),
            steps[-1][3]["score"],
        ]
        for steps in episodes_of_a_bare_loop(workflow, "Diary-v0")
    ]
    measures = play(workflow).measures
    assert measures.shape == (POPULATION_SIZE, NUM_EPISODES, len(objectives))
    np.testing.assert_allclose(measures.reshape(-1, len(objectives)), expected, rtol=1e-6)
    _, state = workflow.step(workflow.init(workflow.make_key()))
    given, kept = measures.mean(axis=1), np.asarray(state.learner.evo_state.fitness)  # ordered by their fronts
    np.testing.assert_allclose(kept[np.argsort(kept[:, 4])], given[np.argsort(given[:, 4])], rtol=1e-6)


def test_elites_are_kept_in_the_cells_of_what_was_measured(make: Make) -> None:
    workflow = make(kind=MAPElitesWorkflow, descriptors=["mean:action"], low=[0.0], high=[1.0], cells=[5])
    episodes = play(workflow)
    _, state = workflow.step(workflow.init(workflow.make_key()))
    cells = np.minimum(episodes.measures.mean(axis=(1, 2)) * 5, 4).astype(int)
    fitness = episodes.episode_returns.mean(axis=1)
    best = [fitness[cells == cell].max() if (cells == cell).any() else -np.inf for cell in range(5)]
    np.testing.assert_allclose(state.learner.evo_state.archive.fitness, best, rtol=1e-6)


def test_a_measure_that_the_environment_does_not_report_is_an_error(make: Make) -> None:
    with pytest.raises(UnknownNameError, match=r"unknown measure 'scor'. Did you mean 'score'"):
        play(make(kind=NSGA2Workflow, objectives=["sum:reward", "last:scor"]))


def test_vector_environments_that_reset_themselves_can_be_played_in(make: Make, envs_are: Any) -> None:
    envs_are(lambda num_envs: AutoresetBaseEnv(gymnasium.vector.SyncVectorEnv([Diary] * num_envs)))
    workflow = make()
    _, state = workflow.step(workflow.init(workflow.make_key()))
    metrics, after = workflow.step(state)
    lengths = np.asarray(metrics["rollout/ep_len_mean"]) * POPULATION_SIZE * NUM_EPISODES
    assert int(after.env_steps) - int(state.env_steps) == round(float(lengths)) >= 2 * POPULATION_SIZE * NUM_EPISODES


# Runners that are lost.


def test_an_env_without_a_job_takes_over_from_one_that_is_lost(make: Make, diary: type[Diary]) -> None:
    workflow = make(env={"runner": {"max_restarts": 0}})
    agent_state, population, key = asked_of(workflow)
    with population_of(workflow, num_envs=4, chunk_size=1, explore=False) as host:
        diary.fault = no_faults_but({seed_of(key, 0, 0)}, None)
        episodes = host.play(agent_state, population, key, NUM_EPISODES)
        assert host.report()["faults/lost_envs"] == 1
    assert np.all(np.isfinite(episodes.episode_returns))


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
def test_chunks_with_fewer_jobs_than_vector_environments_are_played(make: Make, envs_are: Any, mode: Any) -> None:
    envs_are(lambda num_envs: AutoresetBaseEnv(gymnasium.vector.SyncVectorEnv([Diary] * num_envs, autoreset_mode=mode)))
    workflow = make()
    with population_of(workflow, num_envs=5, chunk_size=1, explore=False) as host:
        for _ in range(2):
            episodes = host.play(*asked_of(workflow), NUM_EPISODES)
            assert np.all(np.isfinite(episodes.episode_returns))
            assert np.all(episodes.episode_lengths >= 2)


def test_how_individuals_are_played_can_be_sent_to_another_process(make: Make) -> None:
    workflow = make(normalize_obs=True)
    asked = asked_of(workflow)
    env, optimizer = workflow.settings.train.env, workflow.training.optimizer
    spec = PopulationSpec(env, workflow.agent, False, track_obs=True, optimizer=optimizer)
    sent = cloudpickle.loads(cloudpickle.dumps(spec))
    group = LocalRunners(RunnerSpec(population_envs(env, 4), 1, seed=0))
    with contextlib.closing(HostPopulation(group, sent)) as host:
        episodes = host.play(*asked, NUM_EPISODES)
    jax.tree.map(np.testing.assert_array_equal, episodes, play(workflow))


@contextlib.contextmanager
def population_on(
    workflow: Any, fails: Fails, num_runners: int = 2, samples_individuals: bool = False, seed: int = 0
) -> Iterator[tuple[HostPopulation, UnreliableHosts]]:
    """A population in chunks of two individuals, on runners that die."""
    env, optimizer = workflow.settings.train.env, workflow.training.optimizer
    group = UnreliableHosts(RunnerSpec(population_envs(env, 4), 1, seed=0), num_runners, fails=fails, seed=seed)
    group.samples_individuals = samples_individuals
    spec = PopulationSpec(env, workflow.agent, False, track_obs=True, optimizer=optimizer)
    with contextlib.closing(HostPopulation(group, spec, chunk_size=2)) as host:
        yield host, group


@pytest.mark.parametrize("nth", range(3))
def test_a_runner_that_dies_in_any_chunk_changes_no_bit(make: Make, nth: int) -> None:
    workflow = make(normalize_obs=True)
    died: list[int] = []

    def fails(index: int, request: Any) -> FaultKind | None:
        if request is not None and request.chunk.first == 2 * nth and not died:
            died.append(index)
            return FaultKind.KILLED
        return None

    expected = play(workflow)
    with population_on(workflow, fails) as (host, group):
        episodes = host.play(*asked_of(workflow), NUM_EPISODES)
        assert host.report()["runners/chunks_lost"] == host.report()["faults/killed"] == group.num_rebuilt == 1
    jax.tree.map(np.testing.assert_array_equal, episodes, expected)


def test_an_individual_that_always_kills_its_runner_has_no_fitness_alone(make: Make) -> None:
    workflow = make(normalize_obs=True)

    def fails(index: int, request: Any) -> FaultKind | None:
        if request is None:
            return None
        chunk = request.chunk
        return FaultKind.KILLED if chunk.first <= 3 < chunk.first + chunk.count else None

    expected = play(workflow)
    with population_on(workflow, fails) as (host, _):
        episodes = host.play(*asked_of(workflow), NUM_EPISODES)
        assert host.report()["faults/unfinished_episodes"] == NUM_EPISODES
    is_lost = np.arange(POPULATION_SIZE) == 3
    np.testing.assert_array_equal(np.isnan(episodes.episode_returns).all(axis=1), is_lost)
    np.testing.assert_array_equal(episodes.episode_returns[~is_lost], expected.episode_returns[~is_lost])
    assert float(episodes.obs_statistics.count.value) == episodes.episode_lengths.sum()


def test_runners_play_the_episodes_of_an_evaluation_here_and_a_generation_under_way_begins_again(make: Make) -> None:
    workflow = make(network={"core": "gru"})
    agent_state, key = workflow.init(workflow.make_key()).agent_state, jax.random.key(3)
    expected = workflow.evaluator.evaluate(agent_state, key, 7)
    died: list[Any] = []

    def fails(index: int, request: Any) -> FaultKind | None:
        if isinstance(request, EvaluationRequest) and not died:
            died.append(request)
            return FaultKind.KILLED
        return None

    with population_on(workflow, fails) as (host, group):
        number = host.begin(*asked_of(workflow), NUM_EPISODES)
        evaluator = HostEvaluator(workflow.settings.train.env, workflow.agent, 4, source=host)
        result = evaluator.evaluate(agent_state, key, 7)
        assert number != host.num_begun
        assert (group.num_rebuilt, len(died)) == (1, 1)
    assert expected.num_left_out == result.num_left_out == 0
    np.testing.assert_array_equal(result.episode_returns, expected.episode_returns)
    np.testing.assert_array_equal(result.episode_lengths, expected.episode_lengths)


def test_runners_make_the_individuals_themselves(make: Make) -> None:
    workflow = make(normalize_obs=True)
    state = workflow.init(workflow.make_key())
    expected = workflow.step(state)
    with population_on(workflow, lambda index, request: None, samples_individuals=True) as (host, group):
        workflow.training.player, own = host, workflow.training.player
        found = workflow.step(state)
        workflow.training.player = own
        requests = [request for _, request in group.requests if isinstance(request, EpisodesRequest)]
    assert [request.individuals for request in requests] == [None] * 3
    results = [(metrics, after.agent_state) for metrics, after in (found, expected)]
    jax.tree.map(np.testing.assert_array_equal, *results)


def test_random_play_makes_no_environment_in_the_caller(make: Make, diary: type[Diary]) -> None:
    workflow = make(normalize_obs=True, fixed_obs_statistics=True)
    state = workflow.init(workflow.make_key())
    assert diary.num_open == 1, "the one that its runner described"
    with population_on(workflow, lambda index, request: None) as (host, group):
        seed = int(jax.random.bits(workflow.make_key()))
        obs, weights = host.play_at_random(64, 128, seed)
        assert [type(request) for _, request in group.requests] == [RandomRequest]
    statistics = workflow.agent.update_obs_statistics(
        workflow.agent.init(*workflow.training.spaces, workflow.make_key()), obs, weights
    ).obs_preprocessor_state
    expected = state.agent_state.obs_preprocessor_state
    np.testing.assert_allclose(statistics.mean["obs"], expected.mean["obs"], rtol=1e-6)


def test_a_generation_that_takes_long_lets_the_loop_see_signals_and_goes_on(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    workflow = make(normalize_obs=True)
    training, times = workflow.training, FakeTime()
    state = workflow.init(workflow.make_key())
    expected = workflow.step(state)[1]
    state = workflow.init(workflow.make_key())
    with population_on(workflow, lambda index, request: times.sleep(2.0)) as (host, _):
        monkeypatch.setattr(host_population, "time", SimpleNamespace(monotonic=times.clock))
        training.player, own = host, training.player
        metrics, until = training.no_metrics(state), Counter.of(10_000)
        after, num_calls = state, 0
        while int(after.iterations) == 0 and num_calls < 20:
            assert after is state or after.key is state.key, "unchanged, so that it can be saved"
            after, metrics = training.advance(after, metrics, np.int32(1), until)
            num_calls += 1
        assert host.num_begun == 1, "it is not begun again"
        training.player = own
    assert num_calls > 2
    for leaf, wanted in zip(jax.tree.leaves(after.agent_state), jax.tree.leaves(expected.agent_state), strict=True):
        np.testing.assert_array_equal(leaf, wanted)


# Generations.


def test_fitness_is_the_mean_return_of_an_individual(make: Make) -> None:
    workflow = make()
    episodes = play(workflow)
    metrics, state = workflow.step(workflow.init(workflow.make_key()))
    fitness = episodes.episode_returns.mean(axis=1)
    np.testing.assert_allclose(metrics["evolution/fitness_mean"], fitness.mean(), rtol=1e-6)
    np.testing.assert_allclose(state.learner.evo_state.best_fitness, fitness.max(), rtol=1e-6)
    best = jax.tree.map(lambda leaf: leaf[fitness.argmax()], asked_of(workflow)[1])
    jax.tree.map(np.testing.assert_array_equal, state.learner.evo_state.best_params, best)
    assert int(state.env_steps) == episodes.episode_lengths.sum()


# Faults.


def test_an_episode_that_fails_is_played_again_and_costs_the_others_nothing(make: Make, diary: type[Diary]) -> None:
    workflow = make(normalize_obs=True)
    key = asked_of(workflow)[2]
    undisturbed = play(workflow)
    seed, next_seed = (seed_of(key, 3, 1, num_tries) for num_tries in (0, 1))
    diary.fault = no_faults_but({seed}, 1)
    diary.seeds.clear()
    episodes = play(workflow)
    assert diary.seeds.count(seed) == diary.seeds.count(next_seed) == 1
    is_other = np.ones((POPULATION_SIZE, NUM_EPISODES), bool)
    is_other[3, 1] = False
    np.testing.assert_array_equal(episodes.episode_returns[is_other], undisturbed.episode_returns[is_other])
    assert episodes.episode_lengths[3, 1] > 0
    assert float(episodes.obs_statistics.count.value) == episodes.episode_lengths.sum()
    report = workflow.training.environments.report()
    assert (report["faults/raised"], report["faults/restarts"], report["rollout/steps_discarded"]) == (1, 1, 1)
    assert diary.num_open == 4


@pytest.mark.parametrize("num_lanes", [1, 4])
def test_an_individual_that_cannot_finish_has_no_fitness_and_is_never_the_best(
    make: Make, diary: type[Diary], num_lanes: int, caplog: pytest.LogCaptureFixture
) -> None:
    workflow = make(env={"runner": {"max_restarts": 1}}, num_lanes=num_lanes, normalize_obs=True)
    key = asked_of(workflow)[2]
    diary.fault = no_faults_but({seed_of(key, 2, 0, num_tries) for num_tries in range(9)}, 1)
    episodes = play(workflow)
    is_lost = np.zeros((POPULATION_SIZE, NUM_EPISODES), bool)
    is_lost[2, 0] = True
    np.testing.assert_array_equal(np.isnan(episodes.episode_returns), is_lost)
    np.testing.assert_array_equal(episodes.episode_lengths == 0, is_lost)
    assert float(episodes.obs_statistics.count.value) == episodes.episode_lengths.sum()
    assert workflow.training.environments.report()["faults/unfinished_episodes"] == 1
    (message,) = caplog.messages  # two faults of the same kind: only the first is logged
    assert "the episode is played again, 1 of 1" in message
    metrics, state = workflow.step(workflow.init(workflow.make_key()))
    assert int(state.learner.evo_state.num_invalid) == 1
    assert float(state.learner.evo_state.best_fitness) == np.nanmax(episodes.episode_returns.mean(axis=1))
    np.testing.assert_allclose(
        metrics["rollout/ep_len_mean"], episodes.episode_lengths.sum() / (POPULATION_SIZE * NUM_EPISODES - 1), rtol=1e-6
    )
    assert all(np.all(np.isfinite(leaf)) for leaf in jax.tree.leaves(state.agent_state.params))


def test_an_individual_that_cannot_finish_is_on_no_front(make: Make, diary: type[Diary]) -> None:
    objectives = ["sum:count.squared", "mean:reward"]
    workflow = make(env={"runner": {"max_restarts": 0}}, kind=NSGA2Workflow, objectives=objectives)
    key = asked_of(workflow)[2]
    diary.fault = no_faults_but({seed_of(key, 2, 0)}, 1)
    measures = play(workflow).measures
    assert np.isnan(measures[2, 0]).all()
    _, state = workflow.step(workflow.init(workflow.make_key()))
    assert int(state.learner.evo_state.num_invalid) == 1
    (front,) = workflow.training.populations(state)
    finished = np.delete(measures, 2, axis=0).mean(axis=1)
    np.testing.assert_allclose(np.sort(front["points"], axis=0), np.sort(finished, axis=0), rtol=1e-6)


def test_an_episode_without_end_is_cut_and_counts(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("rookery.evaluators.host_population.MAX_EPISODE_STEPS", 3)
    workflow = make(env={"episode_length": None})
    episodes = play(workflow)
    assert episodes.episode_lengths.max() == 3
    assert np.all(np.isfinite(episodes.episode_returns))
    num_cut = workflow.training.environments.report()["rollout/episodes_cut"]
    assert 0 < num_cut == (episodes.episode_lengths == 3).sum()
    (message,) = caplog.messages
    assert message.endswith("did not end and were cut after 3 steps: set env.episode_length.")


def test_if_no_episode_can_be_finished_the_error_names_the_first_fault(make: Make, diary: type[Diary]) -> None:
    workflow = make(env={"runner": {"max_restarts": 0}})

    def fault(seed: int | None, step: int | None) -> None:
        if step == 1:
            raise ValueError("bad leg")

    diary.fault = fault
    with pytest.raises(
        EnvFaultError, match=r"none of 12 episodes could be finished.*at step 1 on action [01].*bad leg"
    ):
        play(workflow)
    assert diary.num_open == 0
    diary.fault = None
    assert np.all(np.isfinite(play(workflow).episode_returns))


def test_an_environment_that_cannot_reset_is_lost_and_another_one_plays_its_episode(
    make: Make, diary: type[Diary]
) -> None:
    workflow = make(env={"runner": {"max_restarts": 1}}, num_lanes=2)
    undisturbed = play(workflow)
    workflow.close()
    key = asked_of(workflow)[2]
    diary.fault = no_faults_but({seed_of(key, 0, 0, num_tries) for num_tries in range(2)}, None)
    episodes = play(workflow)
    assert workflow.training.environments.report()["faults/lost_envs"] == 1
    np.testing.assert_array_equal(episodes.episode_returns.flat[1:], undisturbed.episode_returns.flat[1:])
    assert np.isfinite(episodes.episode_returns[0, 0])


def test_if_no_environment_can_begin_the_run_ends(make: Make, diary: type[Diary]) -> None:
    workflow = make(env={"runner": {"max_restarts": 1}})

    def fault(seed: int | None, step: int | None) -> None:
        raise ValueError("no display")

    diary.fault = fault
    with pytest.raises(EnvFaultError, match=r"all 4 environments are lost.*at reset.*no display"):
        play(workflow)


def test_an_invalid_result_of_an_environment_can_end_the_run(make: Make, envs_are: Any) -> None:
    class Lying(Diary):
        def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
            obs, _, *rest = super().step(action)
            return obs, float("nan"), *rest

    envs_are(lambda num_envs: VectorBaseEnv(VectorEnv.wrap(lambda index: Lying(), num_envs=num_envs)))
    with pytest.raises(EnvFaultError, match="reward is nan"):
        play(make(env={"runner": {"on_invalid": "raise"}}))


def test_a_killed_process_costs_one_try_of_its_episode(make: Make, envs_are: Any, tmp_path: Path) -> None:
    def kill_once() -> None:
        if not (tmp_path / "killed").exists():
            (tmp_path / "killed").touch()
            kill_process()

    def make_env(index: int) -> gymnasium.Env:
        return FaultyEnv(kill_once, at_step=None if index else 3)

    envs_are(lambda num_envs: VectorBaseEnv(VectorEnv.wrap(make_env, num_envs=num_envs, processes=True)))
    workflow = make(num_lanes=2)
    episodes = play(workflow)
    np.testing.assert_array_equal(episodes.episode_returns, np.full((POPULATION_SIZE, NUM_EPISODES), 10.0))
    report = workflow.training.environments.report()
    assert (report["faults/killed"], report["faults/restarts"], report["rollout/steps_discarded"]) == (1, 1, 3)


# Errors.


def test_environments_with_several_agents_are_refused(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    class Several:
        name, spaces, is_closed = "several", {"left": (), "right": ()}, False

        def prepare(self) -> None:
            """Needs nothing."""

        def close(self) -> None:
            self.is_closed = True

    several = Several()
    monkeypatch.setattr(libraries, "make_host_env", lambda *args, **kwargs: several)
    with pytest.raises(InvalidInputError, match="has several agents"):
        make()
    assert several.is_closed
