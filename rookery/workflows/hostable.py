"""What workflows have in common that train on environments of either world: on the device, or on the host."""

from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import jax.numpy as jnp

from rookery.workflows.config import Settings
from rookery.workflows.workflow import Workflow


class HostableWorkflow(Workflow):
    """Trains on environments that are compiled with it, or on Python objects that are stepped between its programs.

    `prepare` sets `host` in the second case; a family of methods then says how it trains and evaluates there.
    """

    host: Any = None
    """A `HostCollector` or a `HostPopulation`; None where the environments are on the device."""
    training: Any
    """The training program on the host, a loop in Python around compiled ones: `HostTraining` or `HostGenerations`."""

    def __init__(self, settings: Settings, num_devices: int, enable_jit: bool) -> None:
        try:
            super().__init__(settings, num_devices, enable_jit)
        except BaseException:
            self.close()
            raise

    @abstractmethod
    def make_host_program(self, host: Any, iterate: Callable, specs: Any) -> Any:
        """Make what trains on host environments."""

    @abstractmethod
    def make_host_evaluator(self, host: Any) -> Any:
        """Make what evaluates on host environments."""

    def make_training_programs(self, iterate: Callable, specs: Any) -> tuple[Any, Any]:
        if self.host is None:
            return super().make_training_programs(iterate, specs)
        self.training = self.make_host_program(self.host, iterate, specs)
        return self.training.step, self.training

    def _make_evaluator(self) -> Any:
        return super()._make_evaluator() if self.host is None else self.make_host_evaluator(self.host)

    def describe_episodes(self, episodes: Any, prefix: str) -> dict[str, Any]:
        described = super().describe_episodes(episodes, prefix)
        if self.host is not None:
            described[f"{prefix}episodes_left_out"] = jnp.float32(self.evaluator.num_left_out)
        return described

    def _metrics_like(self, state: Any) -> Any:
        return super()._metrics_like(state) if self.host is None else self.training.metrics_like(state)

    def _counts(self, state: Any) -> dict[str, list[Any]]:
        counts = super()._counts(state)
        return counts if self.host is None else counts | {name: [value] for name, value in self.host.report().items()}

    def outside_state(self) -> dict[str, Any]:
        return {} if self.host is None else self.host.get_state()

    def restore_outside(self, outside: dict[str, Any]) -> None:
        if self.host is not None:
            self.host.set_state(outside)

    def close(self) -> None:
        if self.host is not None:
            self.host.close()
