"""Evolution: ask a strategy for a population, play its episodes, tell the strategy the fitness of the individuals."""

import functools
import time
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState, RandomAgent
from rookery.agents.network import NetworkAgent
from rookery.compilation import run_once_options
from rookery.configuration import check_settings, field_names, setting
from rookery.distributed import DEVICE_AXIS, SAME, SPLIT
from rookery.distributed.collectives import sum_over_devices
from rookery.envs import VectorWrapper
from rookery.errors import InvalidInputError
from rookery.evaluators import Evaluator, PopulationEvaluator
from rookery.evaluators.host import HostEvaluator
from rookery.evaluators.host_population import HostPopulation, Recipe
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evaluators.measures import Measure
from rookery.evolution import ECState, EvoOptimizer
from rookery.hyperparameters import Hyperparameters, values_at
from rookery.learning import running_statistics
from rookery.learning.counter import Counter
from rookery.metrics import Metrics, RunningMetrics, accumulate
from rookery.networks.policy import PolicyConfig
from rookery.rollout import rollout
from rookery.runners.groups.group import PATIENCE
from rookery.spaces import Space
from rookery.types import Array, Key, Params, PyTree, as_one_key
from rookery.workflows.evolution.reevaluation import Reevaluation, SearchOnDevice, repeated
from rookery.workflows.evolution.search import (
    EvolutionState,
    SearchTraining,
    check_population,
    search_metrics,
    search_of,
)
from rookery.workflows.host.collector import check_not_traced
from rookery.workflows.programs import Layout, Program, specs_of
from rookery.workflows.training import TrainingState, state_specs, timed

REFERENCE_ENVS, REFERENCE_STEPS = 64, 128
"""The size of the random rollout for `fixed_obs_statistics`."""


@dataclass(frozen=True)
class ECConfig:
    """The settings that all evolutionary methods share."""

    population_size: int = setting(
        128, low=1, help="individuals per generation, over all devices; even if the method pairs them"
    )
    num_episodes: int = setting(1, low=1, help="episodes of each individual; their mean return is its fitness")
    num_lanes: int = setting(
        16, low=1, help="episodes in parallel on a device, or host environments; does not change the result"
    )
    explore: bool = setting(False, help="true: individuals sample their actions; false: they act greedily")
    normalize_obs: bool = setting(
        False, help="by the mean and standard deviation of all observations of earlier generations"
    )
    fixed_obs_statistics: bool = setting(False, help="with normalize_obs: take the statistics from random play, once")
    network: PolicyConfig = setting(PolicyConfig())

    def __post_init__(self) -> None:
        check_settings(self)
        if self.fixed_obs_statistics and not self.normalize_obs:
            raise InvalidInputError("fixed_obs_statistics=true has no effect without normalize_obs=true.")

    @property
    def tracks_obs(self) -> bool:
        """Whether every generation adds to the statistics of observations."""
        return self.normalize_obs and not self.fixed_obs_statistics


@dataclass(frozen=True)
class Evolution:
    """What evolves: a strategy, the agent whose parameters it searches, and their settings."""

    optimizer: EvoOptimizer
    agent: NetworkAgent
    config: ECConfig
    hyperparameters: Hyperparameters

    @functools.cached_property
    def measures(self) -> tuple[Measure, ...]:
        """What the strategy measures of every episode besides its return."""
        return tuple(Measure.parse(text) for text in self.optimizer.measures)


class Generations(SearchTraining):
    """Evolves the parameters of an agent; an iteration is a generation.

    The population is split over the devices. With `normalize_obs`, all individuals of a generation use the same
    statistics: of all earlier generations, or of a random rollout with `fixed_obs_statistics`.
    """

    agent: NetworkAgent

    def __init__(self, evolution: Evolution, layout: Layout) -> None:
        self.optimizer = optimizer = evolution.optimizer
        self.agent = evolution.agent
        self.config = config = evolution.config
        self.layout = layout
        self._hyperparameters = evolution.hyperparameters
        check_population(optimizer, config.population_size, layout)

    def agent_shape(self) -> AgentState:
        return jax.eval_shape(lambda key: self.agent.init(*self.spaces, key), jax.random.key(0))

    def specs(self) -> TrainingState:
        learner = specs_of(EvolutionState, **dict.fromkeys(field_names(EvolutionState), SAME))
        return state_specs(learner).replace(source_state=SAME)

    def with_agent(self, state: TrainingState, agent_state: AgentState) -> TrainingState:
        """Start the search at another agent."""

        def start(state: TrainingState, agent_state: AgentState) -> TrainingState:
            search = search_of(state)
            optimizer = self.optimizer.replace(hyperparameters=search.evo_state.hyperparameters)
            evo_state = optimizer.init(agent_state.params, search.evo_state.key)
            return state.replace(learner=search.replace(agent_state=agent_state, evo_state=evo_state))

        specs = self.specs()
        return self.layout.program(self.layout.over_seeds(start), (specs, SAME), specs)(state, agent_state)

    # For one seed, on this device's share of the population.

    def _start(self, key: Key, hyperparameters: Hyperparameters) -> TrainingState:
        key, eval_key, agent_key, evo_key, reference_key = jax.random.split(key, 5)
        agent_state = self._with_reference_statistics(self.agent.init(*self.spaces, agent_key), reference_key)
        # Strategies take numbers, so schedules are evaluated here.
        optimizer = self.optimizer.replace(hyperparameters=values_at(hyperparameters, 0.0))
        learner = EvolutionState.first(
            agent_state, hyperparameters, evo_state=optimizer.init(agent_state.params, evo_key)
        )
        return TrainingState(key=key, eval_key=eval_key, learner=learner, source_state=())

    def _with_reference_statistics(self, agent_state: AgentState, key: Key) -> AgentState:
        """Set the observation statistics of `fixed_obs_statistics`."""
        return agent_state

    def _ask(self, state: TrainingState) -> tuple[TrainingState, Params, Key]:
        """Start a generation: return the state, this device's share of the population, and the key of its episodes."""
        key, play_key = jax.random.split(state.key)
        population, evo_state = self.optimizer.ask(self._evo_state(state))
        learner = search_of(state).replace(evo_state=evo_state.replace(asked=None))
        return state.replace(key=key, learner=learner), population, play_key

    def _evo_state(self, state: TrainingState) -> ECState:
        """Return the state of the strategy with the hyper-parameters of the next generation."""
        learner = search_of(state)
        hyperparameters = values_at(learner.hyperparameters, learner.env_steps.as_float())
        return learner.evo_state.replace(hyperparameters=hyperparameters)

    def _tell(
        self, state: TrainingState, population: Params, episodes: PopulationEpisodes
    ) -> tuple[Metrics, TrainingState]:
        """End a generation; `episodes.obs_statistics` covers all devices."""
        learner = search_of(state)
        evo_state = self.optimizer.tell_episodes(
            learner.evo_state.replace(asked=population), episodes.episode_returns, episodes.measures
        )
        agent_state = learner.agent_state.replace(params=self.optimizer.center(evo_state))
        if episodes.obs_statistics is not None:
            statistics = running_statistics.merge(agent_state.obs_preprocessor_state, episodes.obs_statistics)
            agent_state = agent_state.replace(obs_preprocessor_state=statistics)
        num_steps = sum_over_devices(jnp.sum(episodes.episode_lengths, dtype=jnp.int32))
        metrics = search_metrics(self.optimizer, evo_state, episodes)
        learner = learner.replace(
            agent_state=agent_state,
            evo_state=evo_state,
            iterations=learner.iterations.add(1),
            env_steps=learner.env_steps.add(num_steps),
            num_updates=learner.num_updates.add(1),
        )
        return metrics, state.replace(learner=learner)


class DeviceGenerations(SearchOnDevice, Generations):
    """Plays the episodes of a population inside the compiled program."""

    evaluator: Evaluator

    def __init__(
        self,
        evolution: Evolution,
        layout: Layout,
        evaluator: Evaluator,
        num_episodes: int,
        reference_env: VectorWrapper | None,
    ) -> None:
        super().__init__(evolution, layout)
        agent, config = self.agent, self.config
        self.evaluator = evaluator
        self.evaluation = self._make_evaluation(num_episodes, is_compiled=True)
        self._reference_env = reference_env
        self.player = PopulationEvaluator(
            env=evaluator.env,
            agent_fn=agent.compute_actions if config.explore else agent.evaluate_actions,
            initial_carry_fn=agent.initial_carry,
            max_episode_steps=evaluator.max_episode_steps,
            num_lanes=min(config.num_lanes, config.population_size * config.num_episodes // layout.num_shares),
            measures=evolution.measures,
            track_obs=config.tracks_obs,
            axis_name=DEVICE_AXIS,
        )
        self._check_measures()
        self.reevaluation = Reevaluation.of(self.optimizer, self.player, layout, with_params)
        self._make_programs(self._start, self._iterate)

    @property
    def spaces(self) -> tuple[Space, Space]:
        return self.evaluator.env.obs_space, self.evaluator.env.action_space

    def collect_seconds(self, state: TrainingState) -> float:
        """Time the episodes of a generation in a separate program, because a part of a program cannot be timed."""

        def play(state: TrainingState) -> Array:
            population, _ = self.optimizer.ask(search_of(state).evo_state)
            return self._play(state.agent_state, population, state.key).episode_returns

        return timed(self.layout.program(self.layout.over_seeds(play), (SAME,), SAME), state)

    def _iterate(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        state, population, play_key = self._ask(state)
        return self._tell(state, population, self._play(state.agent_state, population, play_key))

    def _play(self, agent_state: AgentState, population: Params, key: Key) -> PopulationEpisodes:
        """Play the episodes of this device's share of the population."""
        size = self.optimizer.share_size
        first = jax.lax.axis_index(DEVICE_AXIS) * size
        agents = with_params(repeated(agent_state, size), population)
        return self.player.play(agents, key, self.config.num_episodes, first)

    def _with_reference_statistics(self, agent_state: AgentState, key: Key) -> AgentState:
        """Compute the observation statistics of a random rollout, as virtual batch normalization does."""
        env = self._reference_env
        if env is None:
            return agent_state
        reset_key, player_key, play_key = jax.random.split(key, 3)
        player = RandomAgent()
        player_state = player.init(env.obs_space, env.action_space, player_key)
        trajectory, _ = rollout(
            env.step, player.compute_actions, env.reset(reset_key), player_state, play_key, REFERENCE_STEPS
        )
        return self.agent.update_obs_statistics(agent_state, trajectory.obs)


class HostSearch(SearchTraining):
    """A search whose episodes are played in host environments; asking and telling are compiled programs.

    A subclass makes the programs with `_make_host_programs`, and begins generations.
    """

    advance: "HostGenerationsLoop"
    evaluator: HostEvaluator
    player: HostPopulation

    @abstractmethod
    def begin(self, state: TrainingState) -> tuple[PyTree, Params, int]:
        """Start a generation; return what the state became by asking, the population, and the generation's number."""

    def take_in(self, asked: PyTree, episodes: PopulationEpisodes) -> tuple[PyTree, PopulationEpisodes]:
        """Return what telling takes: what was asked, and the episodes on the devices. It may overwrite `asked`."""
        return asked, self.layout.place(episodes, self.episode_specs)

    @property
    def spaces(self) -> tuple[Space, Space]:
        return self.player.obs_space, self.player.action_space

    def init(self, key: Key, hyperparameters: Hyperparameters | None = None) -> TrainingState:
        return self._run_init(key, hyperparameters)

    def step(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        asked, population, _ = self.begin(state)
        while (episodes := self.player.poll(PATIENCE)) is None:
            if (failure := self.player.failure) is not None:
                self.player.close()
                raise failure
        asked, episodes = self.take_in(asked, episodes)
        return self._tell_all(asked, population, episodes)

    def collect_seconds(self, state: TrainingState) -> float:
        return self.advance.collect_seconds

    def _make_host_programs(
        self,
        start: Callable[[Key, Hyperparameters], TrainingState],
        tell: Callable[[PyTree, Params, PopulationEpisodes], tuple[Metrics, TrainingState]],
        asked_specs: PyTree,
        example: PopulationEpisodes,
    ) -> None:
        """Make the programs from functions of one device's share; `example` has the shapes of all episodes."""
        layout, specs = self.layout, self.specs()
        self.episode_specs = of_episodes = specs_of(
            PopulationEpisodes, episode_returns=SPLIT, episode_lengths=SPLIT, measures=SPLIT, obs_statistics=SAME
        )
        self.example = layout.place(example, of_episodes)

        def tell_and_add(
            asked: PyTree, metrics: RunningMetrics, population: Params, episodes: PopulationEpisodes
        ) -> tuple[TrainingState, RunningMetrics]:
            new_metrics, state = tell(asked, population, episodes)
            return state, accumulate(metrics, new_metrics)

        self._init = layout.program(start, (SAME, SAME), specs, options=run_once_options())
        self._tell_all = layout.program(tell, (asked_specs, SPLIT, of_episodes), (SAME, specs))
        in_place = layout.program(tell_and_add, (asked_specs, SAME, SPLIT, of_episodes), (specs, SAME), donate=(0, 1))
        self.advance = HostGenerationsLoop(self, in_place)


class HostGenerations(HostSearch, Generations):
    """Plays the episodes of a population in host environments."""

    def __init__(
        self,
        evolution: Evolution,
        layout: Layout,
        player: HostPopulation,
        evaluator: HostEvaluator,
        num_episodes: int,
    ) -> None:
        super().__init__(evolution, layout)
        config = self.config
        self.player = self.environments = player
        self.evaluator = evaluator
        self.evaluation = self._make_evaluation(num_episodes, is_compiled=False)
        example = player.no_episodes(config.population_size, config.num_episodes)
        self._make_host_programs(self._start, self._tell, SAME, example)
        self._ask_all = layout.program(self._ask, (SAME,), (SAME, SPLIT, SAME))
        self._recipe = layout.program(self._make_recipe, (SAME,), (SAME, SAME))

    def init(self, key: Key, hyperparameters: Hyperparameters | None = None) -> TrainingState:
        state = super().init(key, hyperparameters)
        if not self.config.fixed_obs_statistics:
            return state
        seed = int(jax.random.bits(as_one_key(key)))
        obs, weights = self.player.play_at_random(REFERENCE_ENVS, REFERENCE_STEPS, seed)
        agent_state = self.agent.update_obs_statistics(state.agent_state, obs, weights)
        agent_state = self.layout.place(agent_state, SAME)
        return state.replace_learner(agent_state=agent_state)

    def metrics_shape(self, state: TrainingState) -> Metrics:
        asked, population, _ = jax.eval_shape(self._ask_all, state)
        return jax.eval_shape(self._tell_all, asked, population, self.example)[0]

    def begin(self, state: TrainingState) -> tuple[TrainingState, Params, int]:
        check_not_traced(self.player.env_name, state)
        asked, population, play_key = self._ask_all(state)
        device = self.layout.mesh.devices.flat[0]  # where agents act
        agent_state, individuals, key = jax.device_put((asked.agent_state, population, play_key), device)
        recipe = None
        if self.player.group.samples_individuals:
            contents, sample_key = self._recipe(state)
            recipe = None if contents is None else Recipe(contents, sample_key)
        number = self.player.begin(agent_state, individuals, key, self.config.num_episodes, recipe)
        return asked, population, number

    def _make_recipe(self, state: TrainingState) -> tuple[PyTree, Array]:
        evo_state = self._evo_state(state)
        return self.optimizer.recipe(evo_state), jax.random.key_data(self.optimizer.sample_key(evo_state))


@dataclass(frozen=True)
class UnderWay:
    """A generation that is being played: the key of the state before it, and what was asked."""

    key: Key
    asked: PyTree
    population: Params
    number: int


class HostGenerationsLoop:
    """The loop of evolution on the host: ask, play, tell."""

    def __init__(self, training: HostSearch, tell: Program) -> None:
        self._training = training
        self._tell = tell
        self._under_way: UnderWay | None = None
        self._is_compiled = False
        self._seconds = 0.0
        self._num_played = 0

    def is_ready(self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter) -> bool:
        return self._is_compiled

    def compile(self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter) -> float:
        start = time.perf_counter()
        generation = self._generation_of(state)  # asking compiles
        self._tell.compile(generation.asked, metrics, generation.population, self._training.example)
        self._is_compiled = True
        return time.perf_counter() - start

    def __call__(
        self, state: TrainingState, metrics: RunningMetrics, num_iterations: np.int32, until: Counter
    ) -> tuple[TrainingState, RunningMetrics]:
        """See `Advance`. It returns early while a generation takes long, so that its caller sees signals.

        The state is then that before the generation, which a resumed run plays again.
        """
        num_done = 0
        while num_done < int(num_iterations) and int(state.env_steps) < int(until):
            generation = self._generation_of(state)
            start = time.perf_counter()
            episodes = self._training.player.poll(PATIENCE)
            self._seconds += time.perf_counter() - start
            if episodes is None:
                break
            self._under_way = None
            self._num_played += 1
            asked, episodes = self._training.take_in(generation.asked, episodes)
            state, metrics = self._tell(asked, metrics, generation.population, episodes)
            num_done += 1
        return state, metrics

    def _generation_of(self, state: TrainingState) -> "UnderWay":
        """Return the generation that follows a state; begin it unless it is under way."""
        under_way, training = self._under_way, self._training
        is_its = under_way is not None and under_way.key is state.key
        if under_way is None or not is_its or under_way.number != training.player.num_begun:
            under_way = self._under_way = UnderWay(state.key, *training.begin(state))
        return under_way

    @property
    def collect_seconds(self) -> float:
        """The mean time to play a generation."""
        return self._seconds / max(self._num_played, 1)


def with_params(agent_state: AgentState, population: Params) -> AgentState:
    """Return agent states with individuals as their parameters."""
    return agent_state.replace(params=population)
