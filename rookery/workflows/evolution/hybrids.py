"""Hybrids of evolution and gradient: one population, one learner, one replay buffer."""

from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState
from rookery.agents.replay import ReplayAgent
from rookery.compilation import run_once_options
from rookery.configuration import field_names
from rookery.distributed import DEVICE_AXIS, SAME
from rookery.distributed.collectives import sum_over_devices
from rookery.evaluators import Evaluator, PopulationEvaluator
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evaluators.measures import Measure
from rookery.hyperparameters import Hyperparameters, HyperparameterValues, Scalar, number, values_at
from rookery.learners.replay import OffPolicyState, ReplayLearner
from rookery.learning import running_statistics
from rookery.metrics import Latest, Mean, Metrics
from rookery.replay_buffers.recorder import Recording, ReplayRecorder
from rookery.replay_buffers.replay_buffer import ReplayState
from rookery.spaces import Space
from rookery.types import Array, Key, Params, PyTreeData, PyTreeDict
from rookery.workflows.evolution.exchange import Exchange, Generation, mean_return
from rookery.workflows.evolution.reevaluation import Reevaluation, SearchOnDevice, repeated
from rookery.workflows.evolution.search import EvolutionState, SearchTraining, check_population, search_metrics
from rookery.workflows.programs import Layout, specs_of
from rookery.workflows.training import CENTER, REFILL, TrainingState, state_specs, timed

NOT_FINITE = "rollout/rows_not_finite"
"""The rows of a generation that are not stored, because they have NaN or infinite numbers."""


class HybridHyperparameters(Hyperparameters):
    """The hyper-parameters of a hybrid, besides those of its strategy and its learner."""

    update_ratio: Scalar = number(1.0, low=0.0, help="gradient steps for every step of an environment")


class HybridState(EvolutionState):
    """A search and a learner; `agent_state` is the center of the search.

    `hyperparameters` has fields `strategy` and `learner` for those of the two parts.
    """

    inherited = (*EvolutionState.inherited, "gradient")

    gradient: OffPolicyState
    last_steps: Array
    """The env steps of the last generation."""

    def with_hyperparameters(self, hyperparameters: Any) -> Self:
        values = jax.tree.map(np.asarray, values_at(hyperparameters.strategy, 0.0))
        return self.replace(
            hyperparameters=hyperparameters,
            evo_state=self.evo_state.replace(hyperparameters=values),
            gradient=self.gradient.with_hyperparameters(hyperparameters.learner),
        )

    @property
    def lacks_replay(self) -> bool:
        return self.gradient.lacks_replay

    def without_replay(self) -> Self:
        return self.replace(gradient=self.gradient.without_replay())


@dataclass(frozen=True)
class Crew:
    """How many agents play a generation, over all devices, each the same number of episodes.

    Besides the population there are copies of the learner's actor: some explore, some act greedily.
    """

    population_size: int
    num_exploring: int
    num_greedy: int
    num_episodes: int

    @property
    def size(self) -> int:
        return self.population_size + self.num_exploring + self.num_greedy

    @property
    def explorers(self) -> range:
        """The numbers of the agents that explore."""
        return range(self.population_size, self.population_size + self.num_exploring)

    def numbers_on(self, device: Array | int, num_devices: int) -> list[Array | np.ndarray]:
        """Return the numbers of the individuals, explorers and greedy copies that a device plays.

        With them the keys of episodes do not depend on the number of devices.
        """
        firsts = 0, self.population_size, self.size - self.num_greedy
        counts = (count // num_devices for count in (self.population_size, self.num_exploring, self.num_greedy))
        return [
            first + device * count + np.arange(count, dtype=np.int32)
            for first, count in zip(firsts, counts, strict=True)
        ]


class Asked(PyTreeData):
    """What a state became when a generation was asked for, and the metrics of those that improved individuals."""

    state: TrainingState
    metrics: Metrics

    def with_buffer(self, buffer_state: ReplayState | None) -> Self:
        return self.replace(state=with_buffer(self.state, buffer_state))


class HybridGenerations(SearchTraining):
    """A population and a learner that learns from the episodes of all; an iteration is a generation.

    The population is split over the devices. The learner is the same on all of them: each draws its share of a batch
    from the rows that its own lanes stored. All individuals of a generation use the observation statistics of the
    generations before it, as does the learner.
    """

    agent: ReplayAgent
    learner: ReplayLearner

    def __init__(self, exchange: Exchange, crew: Crew, hyperparameters: Hyperparameters, layout: Layout) -> None:
        self.exchange = exchange
        self.optimizer = exchange.optimizer
        self.learner = exchange.learner
        self.agent = exchange.learner.agent
        self.crew = crew
        self.layout = layout
        self._hyperparameters = hyperparameters
        check_population(self.optimizer, crew.population_size, layout)
        self.learner.check(layout.num_shares)

    def agent_shape(self) -> AgentState:
        return jax.eval_shape(lambda key: self._acting(self.agent.init(*self.spaces, key)), jax.random.key(0))

    def specs(self) -> TrainingState:
        gradient = jax.eval_shape(self._start_learner, jax.random.key(0), self._hyperparameters)
        fields = dict.fromkeys(field_names(HybridState), SAME) | {"gradient": self.learner.specs(gradient)}
        return state_specs(specs_of(HybridState, **fields)).replace(source_state=SAME)

    def agents(self, state: TrainingState) -> dict[str, AgentState]:
        hybrid = hybrid_of(state)
        agents = {CENTER: state.agent_state, "eval/rl_": self._acting(hybrid.gradient.agent_state)}
        if self.has_best:
            agents["eval/best_"] = self._with_actor(state.agent_state, hybrid.evo_state.best_params)
        return agents

    def with_agent(self, state: TrainingState, agent_state: AgentState) -> TrainingState:
        """Start the search and the learner at another agent."""

        def start(state: TrainingState, agent_state: AgentState) -> TrainingState:
            hybrid, entry = hybrid_of(state), self.agent.actor_entry
            actor = agent_state.params[entry]
            trained = hybrid.gradient.agent_state
            gradient = hybrid.gradient.with_agent(
                agent_state.replace(
                    params=trained.params.replace(**{entry: actor}),
                    action_postprocessor_state=trained.action_postprocessor_state,
                )
            )
            optimizer = self.optimizer.replace(hyperparameters=hybrid.evo_state.hyperparameters)
            evo_state = optimizer.init(actor, hybrid.evo_state.key)
            return state.replace_learner(agent_state=agent_state, gradient=gradient, evo_state=evo_state)

        specs = self.specs()
        return self.layout.program(self.layout.over_seeds(start), (specs, SAME), specs)(state, agent_state)

    # For one seed, on this device's share of the population.

    def _start(self, key: Key, hyperparameters: Any) -> TrainingState:
        key, eval_key, learner_key, evo_key = jax.random.split(key, 4)
        gradient = self._start_learner(learner_key, hyperparameters)
        optimizer = self.optimizer.replace(hyperparameters=values_at(hyperparameters.strategy, 0.0))
        hybrid = HybridState.first(
            self._acting(gradient.agent_state),
            hyperparameters,
            evo_state=optimizer.init(self.exchange.actor_of(gradient), evo_key),
            gradient=gradient,
            last_steps=jnp.zeros((), jnp.int32),
        )
        return TrainingState(key=key, eval_key=eval_key, learner=hybrid, source_state=())

    def _start_learner(self, key: Key, hyperparameters: Any) -> OffPolicyState:
        return self.learner.init(*self.spaces, hyperparameters.learner, key)

    def _ask(self, state: TrainingState) -> tuple[Asked, Params, Key]:
        """Start a generation: also return this device's share of the population, and the key of its episodes."""
        _, improve_key, play_key, _ = jax.random.split(state.key, 4)
        hybrid, exchange = hybrid_of(state), self.exchange
        values = values_of(hybrid)
        generation = Generation(
            key=improve_key, hyperparameters=values, num_updates=self._num_updates(hybrid, values, hybrid.last_steps)
        )
        _, evo_state = self.optimizer.ask(hybrid.evo_state.replace(hyperparameters=values.strategy))
        improved, evo_state, gradient = exchange.improve(evo_state, hybrid.gradient, generation)
        asked = state.replace_learner(gradient=gradient, evo_state=evo_state.replace(asked=None))
        return Asked(state=asked, metrics=improved), evo_state.asked, play_key

    def _tell(self, asked: Asked, population: Params, episodes: PopulationEpisodes) -> tuple[Metrics, TrainingState]:
        """End a generation, whose rows are stored; `episodes.obs_statistics` covers all devices."""
        state, exchange = asked.state, self.exchange
        key, _, _, learn_key = jax.random.split(state.key, 4)
        hybrid = hybrid_of(state)
        values, actor = values_of(hybrid), exchange.actor_of(hybrid.gradient)
        hybrid = self._with_steps(hybrid, episodes)
        num_updates = self._num_updates(hybrid, values, hybrid.last_steps)
        generation = Generation(key=learn_key, hyperparameters=values, num_updates=num_updates, actor=actor)
        own, generation = self._outcome(episodes, generation)
        joined, evo_state, returns, gradient = exchange.join(
            hybrid.evo_state.replace(asked=population), own.episode_returns, hybrid.gradient, generation
        )
        evo_state = self.optimizer.tell_episodes(evo_state, returns, own.measures)
        learned, gradient = exchange.learn(gradient, generation)
        migrated, evo_state = exchange.migrate(evo_state, gradient, generation)
        shown = search_metrics(self.optimizer, evo_state, own) | self._shown(hybrid, generation)
        metrics = {**shown, **asked.metrics, **joined, **learned, **migrated}
        center = self._with_actor(self._acting(gradient.agent_state), self.optimizer.center(evo_state))
        hybrid = hybrid.replace(
            agent_state=center,
            evo_state=evo_state,
            gradient=gradient,
            iterations=hybrid.iterations.add(1),
            num_updates=gradient.num_updates,
        )
        return metrics, state.replace(key=key, learner=hybrid)

    def _agents(self, hybrid: HybridState, population: Params, num_copies: int) -> tuple[AgentState, Params]:
        """Return what all agents of a generation share, and their parameters; copies of the actor come last."""
        actor = self.exchange.actor_of(hybrid.gradient)
        agents = jax.tree.map(
            lambda leaf, of_actor: jnp.concatenate([leaf, jnp.broadcast_to(of_actor, (num_copies, *of_actor.shape))]),
            population,
            actor,
        )
        return self.learner.acting_state(hybrid.gradient), agents

    def _outcome(self, episodes: PopulationEpisodes, generation: Generation) -> tuple[PopulationEpisodes, Generation]:
        """Split off the episodes of the individuals, and say how fit all were."""
        size, num_greedy = self.optimizer.share_size, self.crew.num_greedy // self.layout.num_shares
        own = PopulationEpisodes(
            episode_returns=episodes.episode_returns[:size],
            episode_lengths=episodes.episode_lengths[:size],
            measures=episodes.measures[:size],
            obs_statistics=None,
        )
        fitness = self.optimizer.gathered(self.optimizer.fitness(own.episode_returns, own.measures))
        of_actor = episodes.episode_returns[-num_greedy:] if num_greedy else episodes.episode_returns[size:]
        actor_fitness = mean_return(self.optimizer.gathered(of_actor)) if of_actor.size else jnp.float32(jnp.nan)
        return own, generation.replace(fitness=fitness, actor_fitness=actor_fitness)

    def _with_steps(self, hybrid: HybridState, episodes: PopulationEpisodes) -> HybridState:
        """Count the steps of a generation, and keep what it observed."""
        num_steps = sum_over_devices(jnp.sum(episodes.episode_lengths, dtype=jnp.int32))
        gradient, agent_state = hybrid.gradient, hybrid.gradient.agent_state
        if episodes.obs_statistics is not None:
            statistics = running_statistics.merge(agent_state.obs_preprocessor_state, episodes.obs_statistics)
            agent_state = agent_state.replace(obs_preprocessor_state=statistics)
        env_steps = hybrid.env_steps.add(num_steps)
        gradient = gradient.replace(agent_state=agent_state, env_steps=env_steps)
        gradient = gradient.replace(agent_state=self.learner.acting_state(gradient))
        return hybrid.replace(gradient=gradient, env_steps=env_steps, last_steps=num_steps)

    def _num_updates(self, hybrid: HybridState, values: Any, num_steps: Array) -> Array:
        """Return the number of gradient steps for some env steps; 0 during the warm-up."""
        is_warm = hybrid.env_steps.as_float() >= self.learner.warmup_steps
        return jnp.where(is_warm, self.exchange.num_updates(values, num_steps), 0)

    def _shown(self, hybrid: HybridState, generation: Generation) -> dict[str, Mean | Latest]:
        num_rows = sum_over_devices(jnp.sum(hybrid.gradient.buffer_state.num_rows, dtype=jnp.int32))
        fitness = generation.actor_fitness
        return {
            "hybrid/rl_fitness": Mean.where(jnp.isfinite(fitness), fitness),
            "buffer/size": Latest.of(num_rows),
        }

    def _emptied(self, state: TrainingState) -> tuple[TrainingState, Params, Key]:
        """Return the state with an empty replay buffer, and the population and the key to fill it with."""
        learner_key, play_key = jax.random.split(jax.random.fold_in(state.key, REFILL))
        hybrid = hybrid_of(state)
        empty = self._start_learner(learner_key, hybrid.hyperparameters).buffer_state
        population, _ = self.optimizer.ask(hybrid.evo_state)
        return with_buffer(state, empty), population, play_key

    def _acting(self, agent_state: AgentState) -> AgentState:
        """Return the state with the parameters that act, alone."""
        return self._with_actor(agent_state, agent_state.params[self.agent.actor_entry])

    def _with_actor(self, agent_state: AgentState, actor: Params) -> AgentState:
        return agent_state.replace(params=PyTreeDict({self.agent.actor_entry: actor}))


class DeviceHybrids(SearchOnDevice, HybridGenerations):
    """Plays the episodes of a generation inside the compiled program."""

    evaluator: Evaluator

    def __init__(
        self,
        exchange: Exchange,
        crew: Crew,
        hyperparameters: Hyperparameters,
        layout: Layout,
        num_lanes: int,
        evaluator: Evaluator,
        num_evaluations: int,
    ) -> None:
        super().__init__(exchange, crew, hyperparameters, layout)
        agent = self.agent
        self.evaluator = evaluator
        self.evaluation = self._make_evaluation(num_evaluations, is_compiled=True)
        self.player = PopulationEvaluator(
            env=evaluator.env,
            agent_fn=agent.evaluate_actions,
            explore_fn=agent.compute_actions,
            initial_carry_fn=agent.initial_carry,
            max_episode_steps=evaluator.max_episode_steps,
            num_lanes=num_lanes,
            measures=tuple(Measure.parse(text) for text in self.optimizer.measures),
            track_obs=agent.normalize_obs,
            axis_name=DEVICE_AXIS,
        )
        self._check_measures()
        self.reevaluation = Reevaluation.of(self.optimizer, self.player, layout, self._with_actor)
        self._make_programs(self._start, self._iterate)

    @property
    def spaces(self) -> tuple[Space, Space]:
        return self.evaluator.env.obs_space, self.evaluator.env.action_space

    def refill(self, state: TrainingState) -> TrainingState:
        specs, layout = self.specs(), self.layout
        given = specs.replace(learner=specs.learner.without_replay())
        return layout.program(layout.over_seeds(self._refill), (given,), specs, options=run_once_options())(state)

    def collect_seconds(self, state: TrainingState) -> float:
        """Time the episodes of a generation in a separate program, because a part of a program cannot be timed."""

        def play(state: TrainingState) -> Array:
            hybrid = hybrid_of(state)
            population, _ = self.optimizer.ask(hybrid.evo_state)
            return sum_over_devices(jnp.sum(self._play(hybrid, population, state.key).episode_lengths))

        return timed(self.layout.program(self.layout.over_seeds(play), (self.specs(),), SAME), state)

    def restarted(self, state: TrainingState, is_due: Array) -> TrainingState:
        return state.replace_learner(gradient=self.learner.restarted(hybrid_of(state).gradient, is_due))

    def _iterate(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        asked, population, play_key = self._ask(state)
        episodes = self._play(hybrid_of(asked.state), population, play_key)
        recording: Recording = episodes.recorded
        metrics, state = self._tell(asked.with_buffer(recording.buffer_state), population, episodes)
        counts = {"rollout/idle_rows": recording.num_idle, NOT_FINITE: recording.num_not_finite}
        return {**metrics, **{name: Mean.of(sum_over_devices(count)) for name, count in counts.items()}}, state

    def _play(self, hybrid: HybridState, population: Params, key: Key) -> PopulationEpisodes:
        """Play this device's share of a generation and store its rows; the copies of the actor come last."""
        crew, device = self.crew, jax.lax.axis_index(DEVICE_AXIS)
        numbers = jnp.concatenate(crew.numbers_on(device, self.layout.num_shares))
        acting, agents = self._agents(hybrid, population, numbers.size - self.optimizer.share_size)
        explores = (numbers >= crew.explorers.start) & (numbers < crew.explorers.stop)
        recorder = ReplayRecorder(
            buffer=self.learner.buffer,
            buffer_state=hybrid.gradient.buffer_state,
            shift=(hybrid.iterations.low % self.player.num_lanes).astype(jnp.int32),
        )
        return self.player.play(
            self._with_actor(repeated(acting, numbers.size), agents),
            key,
            crew.num_episodes,
            first_agent=numbers,
            recorder=recorder,
            explores=explores if crew.num_exploring else None,
        )

    def _refill(self, state: TrainingState) -> TrainingState:
        empty, population, play_key = self._emptied(state)
        return with_buffer(state, self._play(hybrid_of(empty), population, play_key).recorded.buffer_state)


def values_of(hybrid: HybridState) -> HyperparameterValues:
    """Return the hyper-parameters of the next generation."""
    return values_at(hybrid.hyperparameters, hybrid.env_steps.as_float())


def with_buffer(state: TrainingState, buffer_state: ReplayState | None) -> TrainingState:
    """Return the state with another replay buffer."""
    return state.replace_learner(gradient=hybrid_of(state).gradient.replace(buffer_state=buffer_state))


def hybrid_of(state: TrainingState) -> HybridState:
    """Return the state of the search and the learner."""
    assert isinstance(state.learner, HybridState), "the state of another training"
    return state.learner
