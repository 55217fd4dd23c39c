"""Workflows of hybrids: a strategy and a learner by name, and how they exchange individuals."""

import dataclasses
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from rookery.algorithms.hybrid.parts import Part, learner_of, strategy_of
from rookery.compilation import batch_invariant_options
from rookery.configuration import check_settings, field_names, setting
from rookery.distributed import check_memory
from rookery.errors import InvalidInputError
from rookery.evolution import EvoOptimizer
from rookery.hyperparameters import Hyperparameters
from rookery.learners.replay import ReplayLearner
from rookery.workflows.choice import check_generations, make_hybrid
from rookery.workflows.config import Settings
from rookery.workflows.evolution.exchange import Exchange
from rookery.workflows.evolution.hybrids import Crew, HybridHyperparameters
from rookery.workflows.off_policy import check_warmup
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow


@dataclass(frozen=True)
class HybridConfig:
    """The settings that all hybrids share."""

    evolution: str = setting("ga", help="the strategy: the name of an evolutionary method")
    gradient: str = setting("td3", help="the learner: the name of an off-policy method")
    population_size: int = setting(10, low=1, help="individuals per generation, over all devices")
    num_episodes: int = setting(1, low=1, help="episodes of each individual; their mean return is its fitness")
    learner_episodes: int = setting(
        1, low=0, help="episodes of the learner's actor per generation, with exploration; a multiple of num_episodes"
    )
    num_lanes: int = setting(
        16,
        low=1,
        help="episodes in parallel on a device, or host environments; on a device it changes the order of the rows in "
        "the replay buffer",
    )
    warmup_steps: int = setting(1000, low=0, help="steps before the first update")
    normalize_obs: bool = setting(False, help="by the mean and standard deviation of all observations so far")
    strategy: Mapping[str, Any] = setting({}, help="settings and hyper-parameters of the strategy, by name")
    learner: Mapping[str, Any] = setting({}, help="settings and hyper-parameters of the learner, by name")

    def __post_init__(self) -> None:
        check_settings(self)

    def crew(self, num_greedy_episodes: int, num_devices: int) -> Crew:
        """Return who plays a generation; raise if episodes do not divide over agents and devices."""
        counts = {"learner_episodes": self.learner_episodes, "learner_eval_episodes": num_greedy_episodes}
        whole = self.num_episodes * num_devices
        for name, count in counts.items():
            if count % whole:
                raise InvalidInputError(
                    f"agent.{name}={count} must be a multiple of agent.num_episodes={self.num_episodes} on each of "
                    f"{num_devices} devices: use {max(1, round(count / whole)) * whole}."
                )
        exploring, greedy = (count // self.num_episodes for count in counts.values())
        return Crew(self.population_size, exploring, greedy, self.num_episodes)


class HybridWorkflow(Workflow):
    """Trains a strategy and a learner on one replay buffer; an iteration is a generation.

    A subclass sets the exchange between the two and the options that differ from those of their methods.
    """

    exchange_class: ClassVar[type[Exchange]]
    config_class: ClassVar[type[HybridConfig]] = HybridConfig
    hyperparameters_class: ClassVar[type[Hyperparameters]] = HybridHyperparameters
    strategy_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Defaults of strategies, by the name of the strategy, that differ from those of its method."""
    learner_options: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The same for learners."""
    vectorize_seeds = False
    is_split_by_devices = True
    compiler_options = batch_invariant_options

    @classmethod
    def check_config(cls, config: Any, agent_name: str | None = None) -> Settings:
        """Check a config and return its settings, in which those of both parts are complete."""
        settings = super().check_config(config, agent_name)
        check_generations(settings)
        strategy, learner = cls.parts(settings)
        method = dataclasses.replace(settings.method, strategy=strategy.to_mapping(), learner=learner.to_mapping())
        own, parts = (
            cls.hyperparameters_class,
            {"strategy": strategy.hyperparameters, "learner": learner.hyperparameters},
        )
        kinds: Any = (own, *map(type, parts.values()))
        numbers = {name: getattr(settings.hyperparameters, name) for name in field_names(own)}
        hyperparameters = hyperparameters_of(*kinds)(**numbers, **parts)
        return dataclasses.replace(settings, method=method, hyperparameters=hyperparameters)

    @classmethod
    def parts(cls, settings: Settings, num_columns: int = 1) -> tuple[Part, Part]:
        """Return the strategy and the learner; `num_columns` is that of the replay buffer, over all devices."""
        config, total_timesteps = settings.method, settings.train.total_timesteps
        shared = {"normalize_obs": config.normalize_obs}
        of_strategy = shared | {
            name: getattr(config, name) for name in ("population_size", "num_episodes", "num_lanes")
        }
        of_learner = shared | {"num_envs": num_columns, "warmup_steps": config.warmup_steps}
        return (
            strategy_of(
                config.evolution,
                {**cls.strategy_options.get(config.evolution, {}), **config.strategy},
                of_strategy,
                total_timesteps,
            ),
            learner_of(
                config.gradient,
                {**cls.learner_options.get(config.gradient, {}), **config.learner},
                of_learner,
                total_timesteps,
            ),
        )

    def make_training(self) -> Training:
        config, num_devices = self.config, self.layout.num_shares
        check_warmup(config.warmup_steps, self.settings.train.total_timesteps)
        strategy, _ = self.parts(self.settings)
        optimizer = self.make_optimizer(strategy)
        exchange_class = self.exchange_for(optimizer)
        crew: Crew = config.crew(exchange_class.num_greedy_episodes(config), num_devices)
        num_jobs = crew.size * crew.num_episodes
        check_memory(f"agent.population_size={config.population_size}", 4 * num_jobs)
        num_lanes = max(1, min(config.num_lanes, num_jobs // num_devices))
        num_columns = num_devices * (1 if self.settings.train.env.is_on_host else num_lanes)
        learner_part = self.parts(self.settings, num_columns)[1]
        learner = learner_part.workflow.learner_class.of(learner_part.config)
        self.check_parts(optimizer, learner)
        exchange = exchange_class(optimizer=optimizer, learner=learner, config=config)
        return make_hybrid(self.settings, self.layout, exchange, crew, num_lanes, self.evaluation_episodes)

    def make_optimizer(self, strategy: Part) -> EvoOptimizer:
        """Build the strategy."""
        return strategy.workflow.make_optimizer(strategy.config, strategy.hyperparameters)

    def exchange_for(self, optimizer: EvoOptimizer) -> type[Exchange]:
        """Return the exchange for a strategy."""
        return self.exchange_class

    def check_parts(self, optimizer: EvoOptimizer, learner: ReplayLearner) -> None:
        """Raise if the method makes no sense with these parts."""


@functools.cache
def hyperparameters_of(own: Any, of_strategy: Any, of_learner: Any) -> Any:
    """Return the class of the hyper-parameters of a hybrid, given the classes of its own and of those of its parts."""
    annotations = {"strategy": of_strategy, "learner": of_learner}
    namespace = {"__doc__": own.__doc__, "__module__": own.__module__, "__annotations__": annotations}
    return type(f"{own.__name__}Of{of_strategy.__name__}And{of_learner.__name__}", (own,), namespace)
