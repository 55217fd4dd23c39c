"""Workflows of evolutionary methods: a strategy, and the network whose parameters it evolves."""

from typing import Any, ClassVar

from rookery.agents.network import NetworkAgent
from rookery.agents.policy import PolicyAgent
from rookery.compilation import batch_invariant_options
from rookery.configuration import field_names
from rookery.distributed import DEVICE_AXIS
from rookery.evolution import EvoOptimizer
from rookery.workflows.choice import train_by_evolution
from rookery.workflows.generations import ECConfig
from rookery.workflows.training import Training
from rookery.workflows.workflow import Workflow


class ECWorkflow(Workflow):
    """Evolves the parameters of an agent; an iteration is a generation."""

    optimizer_class: ClassVar[type[EvoOptimizer]]
    agent_class: ClassVar[type[NetworkAgent]] = PolicyAgent
    # A population fills the device by itself; vectorized, the lanes of one seed would wait for those of another.
    vectorize_seeds = False
    compiler_options = batch_invariant_options

    def make_training(self) -> Training:
        config = self.config
        agent = self.agent_class(config=config.network, normalize_obs=config.normalize_obs)
        optimizer = self.make_optimizer(config, self.settings.hyperparameters)
        return train_by_evolution(self.settings, self.layout, optimizer, agent, config)

    def make_optimizer(self, config: Any, hyperparameters: Any) -> EvoOptimizer:
        """Build the strategy; what its config has besides the common part is named like the fields of the strategy."""
        own_names = set(field_names(type(config))) - set(field_names(ECConfig))
        return self.optimizer_class(
            population_size=config.population_size,
            hyperparameters=hyperparameters,
            axis_name=DEVICE_AXIS,
            **{name: getattr(config, name) for name in own_names},
        )
