"""The training program on host environments: collect with the runner, learn with the compiled program, and again."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from rookery.types import Key, PyTreeDict
from rookery.workflows.host import HostCollector
from rookery.workflows.programs import SAME

if TYPE_CHECKING:
    from rookery.workflows.collecting import CollectingWorkflow


class HostTraining:
    """The training program on host environments: a loop in Python around a compiled iteration.

    It is called like the program that trains on the device. With `overlap` an update runs in a thread of its own, for
    what a thread asks of JAX is done in order: the agent would wait with every action until the update is over.
    """

    def __init__(
        self,
        workflow: "CollectingWorkflow",
        host: HostCollector,
        iterate: Callable,
        specs: Any,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._workflow = workflow
        self._host = host
        self._clock = clock
        self._ahead: tuple[Key, Any, int] | None = None
        """Experience that is there before it is needed, how many steps it has, and the key of the state it is for."""
        self._seconds = self._last_seconds = 0.0
        """How long collecting took, all together and the last time."""
        self._num_collected = 0

        def learn_from(state: Any, experience: Any) -> tuple[PyTreeDict, Any]:
            metrics, state = iterate(state.replace(source_state=experience))
            return metrics, workflow.prepare_to_act(state)

        def advance(state: Any, metrics: Any, experience: Any) -> tuple[Any, Any]:
            new_metrics, state = learn_from(state, experience)
            return state, jax.tree.map(jnp.add, metrics, new_metrics)

        given = workflow.experience_specs()
        self._learn_from = workflow.program(learn_from, (specs, given), (SAME, specs))
        self._advance = workflow.program(advance, (specs, SAME, given), (specs, SAME), donate=(0, 1))
        self._example = self.place(jax.tree.map(np.asarray, host.example(workflow.source)))

    def place(self, experience: Any) -> Any:
        """Split experience over the devices; where there is one, the program takes it as it is."""
        layout = self._workflow.layout
        if layout.mesh.size == 1:
            return experience
        # Programs add up the metrics of all devices.
        metrics = jax.tree.map(lambda number: number / np.float32(layout.mesh.size), experience.metrics)
        return layout.place(experience.replace(metrics=metrics), self._workflow.experience_specs())

    def step(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Collect, and learn from it."""
        return self._learn_from(state, self._collect(self._workflow.acting_state(state))[0])

    def metrics_like(self, state: Any) -> Any:
        """Return the shapes of the metrics of an iteration."""
        return jax.eval_shape(self._learn_from, state, self._example)[0]

    def is_ready(self, state: Any, metrics: Any, *limits: Any) -> bool:
        """Tell whether there is nothing to compile for a state like this."""
        return self._advance.is_ready(state, metrics, self._example)

    def compile(self, state: Any, metrics: Any, *limits: Any) -> float:
        """Compile for a state like this; return the seconds it took."""
        return self._advance.compile(state, metrics, self._example)

    def __call__(self, state: Any, metrics: Any, num_iterations: Any, until: Any) -> tuple[Any, Any]:
        """Train for so many iterations, or until so many env steps are reached."""
        train = self._workflow.settings.train
        num_iterations, until, env_steps = int(num_iterations), int(until), int(state.env_steps)
        advance = self._advance.specialized(state, metrics, self._example)
        num_done = 0
        collected = self._take_ahead(state)
        with ThreadPoolExecutor(1) as thread:
            while num_done < num_iterations and env_steps < until:
                experience, num_steps = collected or self._collect(self._workflow.acting_state(state))
                collected = None
                env_steps += num_steps
                if train.env.runner.overlap and env_steps < train.total_timesteps:
                    # The update overwrites its state.
                    agent_state = jax.tree.map(jnp.copy, self._workflow.acting_state(state))
                    update = thread.submit(advance, state, metrics, experience)
                    try:
                        collected = self._collect(agent_state, staleness=1)
                    finally:
                        state, metrics = update.result()
                else:
                    state, metrics = advance(state, metrics, experience)
                num_done += 1
        if collected is not None:
            self._ahead = (state.key, *collected)
        self._host.seconds_ahead = 0.0 if collected is None else self._last_seconds
        return state, metrics

    @property
    def collect_seconds(self) -> float:
        """How long an iteration collects, on average over all that were made."""
        return self._seconds / max(self._num_collected, 1)

    @property
    def steps_ahead(self) -> int:
        """How many steps were collected that no state has seen."""
        return 0 if self._ahead is None else self._ahead[2]

    def _collect(self, agent_state: Any, staleness: int = 0) -> tuple[Any, int]:
        jax.block_until_ready(agent_state)  # the update is still running, which is not time of collecting
        start = self._clock()
        experience, num_steps = self._host.collect(self._workflow.source, agent_state, staleness)
        self._last_seconds = self._clock() - start
        self._seconds += self._last_seconds
        self._num_collected += 1
        return self.place(experience), num_steps

    def _take_ahead(self, state: Any) -> tuple[Any, int] | None:
        """Return what was collected ahead for this state."""
        if self._ahead is None:
            return None
        (key, experience, num_steps), self._ahead = self._ahead, None
        if key is state.key:
            return experience, num_steps
        self._host.discard(num_steps)
        return None
