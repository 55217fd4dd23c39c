"""Workflows of evolutionary methods: a strategy evolves the parameters of a policy network."""

import dataclasses
from typing import Any, ClassVar, get_type_hints

from rookery.agents.network import NetworkAgent
from rookery.agents.policy import PolicyAgent
from rookery.compilation import batch_invariant_options
from rookery.configuration import field_names, from_mapping
from rookery.cores import NUM_CORES
from rookery.distributed import DEVICE_AXIS
from rookery.evolution import EvoOptimizer
from rookery.evolution.optimizer import max_same_devices
from rookery.hyperparameters import Hyperparameters
from rookery.workflows.choice import check_generations, make_generations
from rookery.workflows.config import Settings
from rookery.workflows.evolution.generations import ECConfig, Evolution
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow


class ECWorkflow(Workflow):
    """Evolves the parameters of an agent; an iteration is a generation.

    A subclass sets the strategy, `optimizer_class`. The strategy declares its settings and hyper-parameters.
    """

    optimizer_class: ClassVar[type[EvoOptimizer]]
    agent_class: ClassVar[type[NetworkAgent]] = PolicyAgent
    is_same_on_devices: ClassVar[bool] = False
    """Whether 2, 4, 8, ... cores compute the same numbers as one, to the bit: then a run uses all by default."""
    # One population fills the device. With `vmap`, the lanes of one seed would wait for those of another.
    vectorize_seeds = False
    iterations_per_round = 4
    compiler_options = batch_invariant_options

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if "optimizer_class" in cls.__dict__:
            cls.config_class = config_of(cls.optimizer_class)
            declared = get_type_hints(cls.optimizer_class)["hyperparameters"]
            cls.hyperparameters_class = Hyperparameters if declared is Any else declared

    @classmethod
    def check_config(cls, config: Any, agent_name: str | None = None) -> Settings:
        settings = super().check_config(config, agent_name)
        check_generations(settings)
        return settings

    @classmethod
    def default_devices(cls, settings: Settings, limit: int) -> int:
        """Return as many devices as compute the same numbers to the bit; on the host, processes use the cores."""
        if settings.train.env.is_on_host or not cls.is_same_on_devices:
            return 1
        return max_same_devices(settings.method.population_size, min(limit, NUM_CORES))

    def make_training(self) -> Training:
        config = self.config
        agent = self.agent_class(config=config.network, normalize_obs=config.normalize_obs)
        optimizer = self.make_optimizer(config, self.settings.hyperparameters)
        evolution = Evolution(optimizer, agent, config, self.settings.hyperparameters)
        return make_generations(self.settings, self.layout, evolution, self.evaluation_episodes)

    @classmethod
    def make_optimizer(cls, config: ECConfig, hyperparameters: Hyperparameters) -> EvoOptimizer:
        """Build the strategy from the settings that it declares."""
        names = [name for name in field_names(cls.optimizer_class) if name in field_names(type(config))]
        arguments = {name: getattr(config, name) for name in names}
        arguments |= {"hyperparameters": hyperparameters, "axis_name": DEVICE_AXIS}
        return from_mapping(cls.optimizer_class, arguments, "agent")


def config_of(strategy: type[EvoOptimizer]) -> type[ECConfig]:
    """Derive the config of a strategy: the common settings, and the settings that the strategy declares."""
    annotations = get_type_hints(strategy)
    own = [entry for entry in dataclasses.fields(strategy) if "declaration" in entry.metadata]
    fields = [(entry.name, annotations[entry.name], _copied(entry)) for entry in own]
    namespace = {"__doc__": f"The settings of {strategy.__name__}.", "__module__": strategy.__module__}
    return dataclasses.make_dataclass(
        f"{strategy.__name__}Config", fields, bases=(ECConfig,), namespace=namespace, frozen=True
    )


def _copied(entry: dataclasses.Field) -> object:
    return dataclasses.field(default=entry.default, metadata=entry.metadata)
