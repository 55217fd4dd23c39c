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
from rookery.hyperparameters import Hyperparameters, Scalar, number, values_at
from rookery.learners.replay import OffPolicyState, ReplayLearner
from rookery.learning import running_statistics
from rookery.metrics import Latest, Mean, Metrics
from rookery.replay_buffers.recorder import Recording, ReplayRecorder
from rookery.spaces import Space
from rookery.types import Array, Key, Params, PyTreeDict
from rookery.workflows.exchange import Exchange, Generation, mean_return
from rookery.workflows.programs import Layout, specs_of
from rookery.workflows.reevaluation import Reevaluation, SearchOnDevice, repeated
from rookery.workflows.search import EvolutionState, check_population, search_metrics
from rookery.workflows.training import CENTER, REFILL, TrainingState, state_specs, timed


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


class HybridGenerations(SearchOnDevice):
    """A population and a learner that learns from the episodes of all; an iteration is a generation.

    The population is split over the devices. The learner is the same on all of them: each draws its share of a batch
    from the rows that its own lanes stored. All individuals of a generation use the observation statistics of the
    generations before it, as does the learner.
    """

    agent: ReplayAgent
    learner: ReplayLearner
    evaluator: Evaluator

    def __init__(
        self,
        exchange: Exchange,
        crew: Crew,
        num_lanes: int,
        hyperparameters: Hyperparameters,
        layout: Layout,
        evaluator: Evaluator,
        num_evaluations: int,
    ) -> None:
        self.exchange = exchange
        self.optimizer = exchange.optimizer
        self.learner = exchange.learner
        self.agent = agent = exchange.learner.agent
        self.crew = crew
        self.layout = layout
        self.evaluator = evaluator
        self._hyperparameters = hyperparameters
        check_population(self.optimizer, crew.population_size, layout)
        self.learner.check(layout.num_shares)
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
        self.reevaluation = Reevaluation.of(self.optimizer, self.player, layout, self._with_actor)
        self._make_programs(self._start, self._iterate)

    @property
    def spaces(self) -> tuple[Space, Space]:
        return self.evaluator.env.obs_space, self.evaluator.env.action_space

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

    # For one seed, on this device's share of the population.

    def restarted(self, state: TrainingState, is_due: Array) -> TrainingState:
        return state.replace_learner(gradient=self.learner.restarted(hybrid_of(state).gradient, is_due))

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

    def _iterate(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        key, improve_key, play_key, learn_key = jax.random.split(state.key, 4)
        hybrid, exchange = hybrid_of(state), self.exchange
        values = values_at(hybrid.hyperparameters, hybrid.env_steps.as_float())
        generation = Generation(
            key=improve_key, hyperparameters=values, num_updates=self._num_updates(hybrid, values, hybrid.last_steps)
        )
        _, evo_state = self.optimizer.ask(hybrid.evo_state.replace(hyperparameters=values.strategy))
        improved, evo_state, gradient = exchange.improve(evo_state, hybrid.gradient, generation)
        hybrid = hybrid.replace(gradient=gradient)
        generation = generation.replace(actor=exchange.actor_of(gradient))
        episodes = self._play(hybrid, evo_state.asked, play_key)
        own, generation = self._outcome(episodes, generation)
        hybrid = self._with_steps(hybrid, episodes)
        joined, evo_state, returns, gradient = exchange.join(
            evo_state, own.episode_returns, hybrid.gradient, generation
        )
        evo_state = self.optimizer.tell_episodes(evo_state, returns, own.measures)
        generation = generation.replace(key=learn_key, num_updates=self._num_updates(hybrid, values, hybrid.last_steps))
        learned, gradient = exchange.learn(gradient, generation)
        migrated, evo_state = exchange.migrate(evo_state, gradient, generation)
        shown = search_metrics(self.optimizer, evo_state, own) | self._episode_metrics(hybrid, episodes, generation)
        metrics = {**shown, **improved, **joined, **learned, **migrated}
        center = self._with_actor(self._acting(gradient.agent_state), self.optimizer.center(evo_state))
        hybrid = hybrid.replace(
            agent_state=center,
            evo_state=evo_state,
            gradient=gradient,
            iterations=hybrid.iterations.add(1),
            num_updates=gradient.num_updates,
        )
        return metrics, state.replace(key=key, learner=hybrid)

    def _play(self, hybrid: HybridState, population: Params, key: Key) -> PopulationEpisodes:
        """Play this device's share of a generation and store its rows; the copies of the actor come last."""
        num_shares, crew = self.layout.num_shares, self.crew
        own_individuals, own_exploring, own_greedy = (
            count // num_shares for count in (crew.population_size, crew.num_exploring, crew.num_greedy)
        )
        num_copies = own_exploring + own_greedy
        actor = self.exchange.actor_of(hybrid.gradient)
        agents = jax.tree.map(
            lambda leaf, of_actor: jnp.concatenate([leaf, jnp.broadcast_to(of_actor, (num_copies, *of_actor.shape))]),
            population,
            actor,
        )
        size = own_individuals + num_copies
        acting = self.learner.acting_state(hybrid.gradient)
        shared = repeated(acting, size)
        # The numbers of agents, and with them the keys of their episodes, do not depend on the number of devices.
        parts = (0, own_individuals), (crew.population_size, own_exploring), (crew.size - crew.num_greedy, own_greedy)
        device = jax.lax.axis_index(DEVICE_AXIS)
        numbers = [first + device * count + jnp.arange(count, dtype=jnp.int32) for first, count in parts]
        places = np.arange(size)
        explores = (places >= own_individuals) & (places < own_individuals + own_exploring)
        recorder = ReplayRecorder(
            buffer=self.learner.buffer,
            buffer_state=hybrid.gradient.buffer_state,
            shift=(hybrid.iterations.low % self.player.num_lanes).astype(jnp.int32),
        )
        return self.player.play(
            self._with_actor(shared, agents),
            key,
            crew.num_episodes,
            first_agent=jnp.concatenate(numbers),
            recorder=recorder,
            explores=jnp.asarray(explores) if own_exploring else None,
        )

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
        """Count the steps of a generation, and keep what it recorded and observed."""
        num_steps = sum_over_devices(jnp.sum(episodes.episode_lengths, dtype=jnp.int32))
        gradient, agent_state = hybrid.gradient, hybrid.gradient.agent_state
        if episodes.obs_statistics is not None:
            statistics = running_statistics.merge(agent_state.obs_preprocessor_state, episodes.obs_statistics)
            agent_state = agent_state.replace(obs_preprocessor_state=statistics)
        env_steps = hybrid.env_steps.add(num_steps)
        gradient = gradient.replace(
            agent_state=agent_state, buffer_state=episodes.recorded.buffer_state, env_steps=env_steps
        )
        gradient = gradient.replace(agent_state=self.learner.acting_state(gradient))
        return hybrid.replace(gradient=gradient, env_steps=env_steps, last_steps=num_steps)

    def _num_updates(self, hybrid: HybridState, values: Any, num_steps: Array) -> Array:
        """Return the number of gradient steps for some env steps; 0 during the warm-up."""
        is_warm = hybrid.env_steps.as_float() >= self.learner.warmup_steps
        return jnp.where(is_warm, self.exchange.num_updates(values, num_steps), 0)

    def _episode_metrics(
        self, hybrid: HybridState, episodes: PopulationEpisodes, generation: Generation
    ) -> dict[str, Mean | Latest]:
        recording: Recording = episodes.recorded
        num_rows = jnp.sum(hybrid.gradient.buffer_state.num_rows, dtype=jnp.int32)
        num_rows, num_idle = sum_over_devices((num_rows, recording.num_idle))
        fitness = generation.actor_fitness
        return {
            "hybrid/rl_fitness": Mean.where(jnp.isfinite(fitness), fitness),
            "rollout/idle_rows": Mean.of(num_idle),
            "buffer/size": Latest.of(num_rows),
        }

    def _refill(self, state: TrainingState) -> TrainingState:
        learner_key, play_key = jax.random.split(jax.random.fold_in(state.key, REFILL))
        hybrid = hybrid_of(state)
        empty = self._start_learner(learner_key, hybrid.hyperparameters).buffer_state
        population, _ = self.optimizer.ask(hybrid.evo_state)
        with_buffer = hybrid.replace(gradient=hybrid.gradient.replace(buffer_state=empty))
        recorded = self._play(with_buffer, population, play_key).recorded
        return state.replace_learner(gradient=hybrid.gradient.replace(buffer_state=recorded.buffer_state))

    def _acting(self, agent_state: AgentState) -> AgentState:
        """Return the state with the parameters that act, alone."""
        return self._with_actor(agent_state, agent_state.params[self.agent.actor_entry])

    def _with_actor(self, agent_state: AgentState, actor: Params) -> AgentState:
        return agent_state.replace(params=PyTreeDict({self.agent.actor_entry: actor}))


def hybrid_of(state: TrainingState) -> HybridState:
    """Return the state of the search and the learner."""
    assert isinstance(state.learner, HybridState), "the state of another training"
    return state.learner
