"""Evolution: ask a strategy for a population, play its episodes, tell the strategy how fit they are."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import AgentState, RandomAgent
from rookery.compilation import batch_invariant_options
from rookery.configuration import field_names
from rookery.distributed import DEVICE_AXIS, check_divides
from rookery.distributed.collectives import sum_over_devices
from rookery.envs import AutoresetMode
from rookery.errors import InvalidInputError, check_count
from rookery.evaluators import PopulationEvaluator
from rookery.evaluators.lanes import PopulationEpisodes
from rookery.evaluators.measures import Measure
from rookery.evolution import EvoOptimizer
from rookery.hyperparameters import LinearSchedule, values_at
from rookery.learning import running_statistics
from rookery.metrics import Mean
from rookery.networks.policy import PolicyConfig
from rookery.rollout import rollout
from rookery.types import Array, Key, Params, PyTreeDict, as_one_key
from rookery.workflows.config import Settings
from rookery.workflows.host_evaluator import HostEvaluator
from rookery.workflows.host_generations import HostGenerations
from rookery.workflows.host_population import HostPopulation
from rookery.workflows.hostable import HostableWorkflow
from rookery.workflows.programs import SAME
from rookery.workflows.workflow import WorkflowState

REFERENCE_ENVS, REFERENCE_STEPS = 64, 128
"""The batch of random play that `fixed_obs_statistics` are taken from."""

MAX_PARAMS_WITH_PATH = 100
"""Up to so many parameters the first two of the center are logged, for the path that it takes."""

QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}


@dataclass(frozen=True)
class ECConfig:
    """The shapes that all evolutionary methods have in common.

    `num_episodes` are those of each individual in a generation, whose mean return is its fitness; `num_lanes` is how
    many episodes are played side by side on a device, or how many environments there are on the host, which makes no
    difference to the result.
    """

    population_size: int = 128
    num_episodes: int = 1
    num_lanes: int = 16
    explore: bool = False
    normalize_obs: bool = False
    fixed_obs_statistics: bool = False
    network: PolicyConfig = field(default_factory=PolicyConfig)

    def __post_init__(self) -> None:
        check_count("population_size", self.population_size)
        check_count("num_episodes", self.num_episodes)
        check_count("num_lanes", self.num_lanes)
        if self.fixed_obs_statistics and not self.normalize_obs:
            raise InvalidInputError("fixed_obs_statistics=true has no effect without normalize_obs=true.")


class ECWorkflowState(WorkflowState):
    """What evolution carries from one generation to the next; `agent_state` is the center of the search."""

    evo_state: Any


class ECWorkflow(HostableWorkflow):
    """Evolves the parameters of an agent; an iteration is a generation.

    The population is split over the devices. All individuals of a generation see observations normalized by the same
    statistics: those of all observations of earlier generations, or with `fixed_obs_statistics` those of random play.
    """

    agent_class: ClassVar[type]
    optimizer_class: ClassVar[type[EvoOptimizer]]
    agent: Any
    config: Any
    host: HostPopulation | None = None
    training: HostGenerations
    # A population fills the device by itself, and side by side the lanes of one seed would wait for those of another.
    seeds_side_by_side = False

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        config = settings.method
        check_divides("agent.population_size", config.population_size, num_devices)
        self.optimizer = self.make_optimizer(config, settings.hyperparameters)
        whole = num_devices * self.optimizer.group_size
        if config.population_size % whole:
            raise InvalidInputError(
                f"agent.population_size={config.population_size} does not split into pairs over {num_devices} devices: "
                f"use a multiple of {whole}."
            )
        if isinstance(getattr(settings.hyperparameters, "initial_std", None), LinearSchedule):
            raise InvalidInputError("agent.initial_std is used once, at the start: give a number, not a schedule.")
        super().__init__(settings, num_devices, enable_jit)
        if self.host is not None:
            return
        if config.fixed_obs_statistics:
            self.reference_env = self.make_env(REFERENCE_ENVS, AutoresetMode.NORMAL)
        self.population_evaluator = PopulationEvaluator(
            env=self.evaluator.env,
            agent_fn=self.agent.compute_actions if config.explore else self.agent.evaluate_actions,
            initial_carry_fn=self.agent.initial_carry,
            max_episode_steps=self.evaluator.max_episode_steps,
            num_lanes=min(config.num_lanes, config.population_size * config.num_episodes // num_devices),
            measures=self._parsed_measures,
            track_obs=self._tracks_obs,
        )
        if self.measures:
            jax.eval_shape(self._measure_one_step, jax.random.key(0))  # raises for what the environment does not have

    def _measure_one_step(self, key: Key) -> list[Array]:
        env = self.population_evaluator.single_env
        action = env.action_space.sample(key)
        env_state = env.step(env.reset(key), action)
        return [measure.at_step(action, env_state) for measure in self.population_evaluator.measures]

    @property
    def compiler_options(self) -> dict[str, str]:
        return batch_invariant_options()

    def prepare(self) -> None:
        config, train = self.config, self.settings.train
        if not train.env.is_on_host:
            return
        self.host = HostPopulation(
            train,
            self.agent,
            num_slots=min(config.num_lanes, config.population_size * config.num_episodes),
            explore=config.explore,
            track_obs=self._tracks_obs,
            measures=self._parsed_measures,
        )

    @property
    def _parsed_measures(self) -> tuple[Measure, ...]:
        return tuple(Measure.parse(text) for text in self.measures)

    @property
    def _tracks_obs(self) -> bool:
        """Whether the statistics of observations follow what the population sees."""
        return self.config.normalize_obs and not self.config.fixed_obs_statistics

    def make_agent(self) -> Any:
        return self.agent_class(config=self.config.network, normalize_obs=self.config.normalize_obs)

    def make_optimizer(self, config: Any, hyperparameters: Any) -> EvoOptimizer:
        """Build the strategy; what its config has beside the common part is named like the fields of the strategy."""
        own_names = set(field_names(type(config))) - set(field_names(ECConfig)) - set(self.config_only)
        return self.optimizer_class(
            population_size=config.population_size,
            hyperparameters=hyperparameters,
            axis_name=DEVICE_AXIS,
            **{name: getattr(config, name) for name in own_names},
        )

    # What a method may define.

    config_only: ClassVar[tuple[str, ...]] = ()
    """Fields of the config that are not the strategy's."""
    has_best: ClassVar[bool] = True
    """Whether one individual can be the best of all so far, as it cannot for several objectives."""

    @property
    def measures(self) -> tuple[str, ...]:
        """What to measure of every episode beside its return."""
        return ()

    def fitness_of(self, episodes: PopulationEpisodes) -> Array:
        """Return the fitness `[P]`, or `[P, M]` for several objectives, of the individuals that played."""
        return jnp.mean(episodes.episode_returns, axis=1)

    def tell(self, evo_state: Any, episodes: PopulationEpisodes) -> Any:
        """Tell the strategy what came out."""
        return self.optimizer.tell(evo_state, self.fitness_of(episodes))

    # What a workflow defines.

    def setup(self, key: Key) -> ECWorkflowState:
        key, eval_key, agent_key, evo_key, reference_key = jax.random.split(key, 5)
        env = self.evaluator.env if self.host is None else self.host
        agent_state = self.agent.init(env.obs_space, env.action_space, agent_key)
        if self.config.fixed_obs_statistics and self.host is None:
            agent_state = self._with_reference_statistics(agent_state, reference_key)
        # A strategy knows numbers; schedules are the workflow's.
        optimizer = self.optimizer.replace(hyperparameters=values_at(self.settings.hyperparameters, 0.0))
        return ECWorkflowState.first(
            key,
            eval_key,
            agent_state,
            self.settings.hyperparameters,
            evo_state=optimizer.init(agent_state.params, evo_key),
        )

    def state_specs(self) -> Any:
        return SAME

    def iterate(self, state: ECWorkflowState) -> tuple[PyTreeDict, ECWorkflowState]:
        state, population, play_key = self.ask(state)
        return self.learn_from(state, population, self._play(state.agent_state, population, play_key))

    def ask(self, state: ECWorkflowState) -> tuple[ECWorkflowState, Params, Key]:
        """Begin a generation: return the state to go on with, this device's share of the population, and its key."""
        key, play_key = jax.random.split(state.key)
        hyperparameters = values_at(state.hyperparameters, state.env_steps.as_float())
        population, evo_state = self.optimizer.ask(state.evo_state.replace(hyperparameters=hyperparameters))
        return state.replace(key=key, evo_state=evo_state.replace(asked=None)), population, play_key

    def learn_from(
        self, state: ECWorkflowState, population: Params, episodes: PopulationEpisodes
    ) -> tuple[PyTreeDict, ECWorkflowState]:
        """End a generation, given what came out; the statistics of observations are those of all devices."""
        evo_state = self.tell(state.evo_state.replace(asked=population), episodes)
        agent_state = state.agent_state.replace(params=self.optimizer.center(evo_state))
        if episodes.obs_statistics is not None:
            statistics = running_statistics.merge(agent_state.obs_preprocessor_state, episodes.obs_statistics)
            agent_state = agent_state.replace(obs_preprocessor_state=statistics)
        num_steps = sum_over_devices(jnp.sum(episodes.episode_lengths, dtype=jnp.int32))
        metrics = self._metrics(evo_state, episodes)
        return metrics, state.replace(
            agent_state=agent_state,
            evo_state=evo_state,
            iterations=state.iterations.add(1),
            env_steps=state.env_steps.add(num_steps),
            num_updates=state.num_updates.add(1),
        )

    def _counts(self, state: ECWorkflowState) -> dict[str, list[Any]]:
        return super()._counts(state) | {"evolution/num_invalid": np.ravel(state.evo_state.num_invalid).tolist()}

    def evaluated_agents(self, state: ECWorkflowState) -> dict[str, AgentState]:
        agents = {"eval/": state.agent_state}
        if self.has_best:
            agents["eval/best_"] = state.agent_state.replace(params=state.evo_state.best_params)
        return agents

    def collect_seconds(self, state: ECWorkflowState) -> float:
        """Measure how long a generation plays: by itself, for inside an iteration nothing can be timed."""
        if self.host is not None:
            return self.training.collect_seconds

        def play(state: ECWorkflowState) -> Array:
            population, _ = self.optimizer.ask(state.evo_state)
            return self._play(state.agent_state, population, state.key).episode_returns

        program = self.program(self.layout.over_seeds(play), (SAME,), SAME)
        jax.block_until_ready(program(state))
        start = time.perf_counter()
        jax.block_until_ready(program(state))
        return time.perf_counter() - start

    def _play(self, agent_state: AgentState, population: Params, key: Key) -> PopulationEpisodes:
        """Play the episodes of this device's share of the population."""
        size = self.optimizer.share_size
        shared = jax.tree.map(
            lambda leaf: jnp.broadcast_to(leaf, (size, *leaf.shape)), agent_state.replace(params=None)
        )
        first = jax.lax.axis_index(DEVICE_AXIS) * size
        agent_states, num_episodes = shared.replace(params=population), self.config.num_episodes
        episodes = self.population_evaluator.play(agent_states, key, num_episodes, first)
        if episodes.obs_statistics is None:
            return episodes
        observed = running_statistics.merge_over_axis(episodes.obs_statistics, DEVICE_AXIS)
        return episodes.replace(obs_statistics=observed)

    def _with_reference_statistics(self, agent_state: AgentState, key: Key) -> AgentState:
        """Take the statistics of observations from random play, as virtual batch normalization does."""
        reset_key, player_key, play_key = jax.random.split(key, 3)
        env, player = self.reference_env, RandomAgent()
        player_state = player.init(env.obs_space, env.action_space, player_key)
        trajectory, _ = rollout(
            env.step, player.compute_actions, env.reset(reset_key), player_state, play_key, REFERENCE_STEPS
        )
        return self.agent.update_obs_statistics(agent_state, trajectory.obs)

    # On the host.

    def init(self, key: Key) -> ECWorkflowState:
        state = super().init(key)
        if self.host is None or not self.config.fixed_obs_statistics:
            return state
        seed = int(jax.random.bits(as_one_key(key)))
        obs, weights = self.host.play_at_random(REFERENCE_ENVS, REFERENCE_STEPS, seed)
        agent_state = self.agent.update_obs_statistics(state.agent_state, obs, weights)
        return state.replace(agent_state=self.layout.place(agent_state, SAME))

    def make_host_program(self, host: HostPopulation, iterate: Callable, specs: Any) -> HostGenerations:
        return HostGenerations(self, host)

    def make_host_evaluator(self, host: HostPopulation) -> HostEvaluator:
        return HostEvaluator(self.settings.train, self.agent, host.num_slots)

    def describe_restart(self) -> str:
        return "" if self.host is None else f"{self.settings.train.env.name} starts anew, as in every generation"

    def _metrics(self, evo_state: Any, episodes: PopulationEpisodes) -> PyTreeDict:
        played = {
            "rollout/ep_rew_mean": Mean.where(jnp.isfinite(episodes.episode_returns), episodes.episode_returns),
            "rollout/ep_len_mean": Mean.where(episodes.episode_lengths > 0, episodes.episode_lengths),
        }
        metrics = sum_over_devices(played)
        fitness = self.optimizer.gathered(self.fitness_of(episodes))
        columns = {"fitness": fitness} if fitness.ndim == 1 else {}
        for index in range(fitness.shape[1] if fitness.ndim > 1 else 0):
            columns[f"objective_{index}"] = fitness[:, index]
        for name, values in columns.items():
            valid = jnp.where(jnp.isfinite(values), values, jnp.nan)
            numbers = {quantile: jnp.nanquantile(valid, share) for quantile, share in QUANTILES.items()}
            numbers |= {"mean": jnp.nanmean(valid), "std": jnp.nanstd(valid)}
            metrics |= {f"evolution/{name}_{kind}": _if_finite(number) for kind, number in numbers.items()}
        metrics |= {
            f"evolution/{name}": _if_finite(number) for name, number in self.optimizer.report(evo_state).items()
        }
        if fitness.ndim == 1:
            metrics["evolution/best_fitness"] = _if_finite(evo_state.best_fitness)
        center = jax.tree.leaves(self.optimizer.center(evo_state))
        if 2 <= sum(leaf.size for leaf in center) <= MAX_PARAMS_WITH_PATH:
            first, second = jnp.concatenate([leaf.ravel() for leaf in center])[:2]
            metrics |= {"evolution/center_0": _if_finite(first), "evolution/center_1": _if_finite(second)}
        return PyTreeDict(metrics)


def _if_finite(number: Array) -> Mean:
    return Mean.where(jnp.isfinite(number), number)
