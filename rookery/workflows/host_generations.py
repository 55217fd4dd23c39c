"""Evolution on host environments: ask in a compiled program, play on the host, tell in a compiled program, again."""

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from rookery.evaluators.lanes import PopulationEpisodes
from rookery.types import Key, Params, PyTreeDict
from rookery.workflows.host import check_not_traced
from rookery.workflows.host_population import HostPopulation
from rookery.workflows.programs import SAME, SPLIT

if TYPE_CHECKING:
    from rookery.workflows.evolution import ECWorkflow


class HostGenerations:
    """The training program on host environments: generations whose episodes are played between compiled programs.

    It is called like the program that trains on the device.
    """

    def __init__(self, workflow: "ECWorkflow", host: HostPopulation) -> None:
        self._workflow = workflow
        self._host = host
        self._is_compiled = False
        self._seconds = 0.0
        self._num_played = 0

        def advance(state: Any, metrics: Any, population: Params, episodes: PopulationEpisodes) -> tuple[Any, Any]:
            new_metrics, state = workflow.learn_from(state, population, episodes)
            return state, jax.tree.map(jnp.add, metrics, new_metrics)

        of_each: dict[str, Any] = dict.fromkeys(("episode_returns", "episode_lengths", "measures"), SPLIT)
        of_all: Any = SAME
        specs = PopulationEpisodes(**of_each, obs_statistics=of_all)
        self._place = partial(workflow.layout.place, specs=specs)
        config = workflow.config
        self._example = self._place(host.no_episodes(config.population_size, config.num_episodes))
        self._ask = workflow.program(workflow.ask, (SAME,), (SAME, SPLIT, SAME))
        self._learn_from = workflow.program(workflow.learn_from, (SAME, SPLIT, specs), (SAME, SAME))
        self._advance = workflow.program(advance, (SAME, SAME, SPLIT, specs), (SAME, SAME), donate=(0, 1))

    def step(self, state: Any) -> tuple[PyTreeDict, Any]:
        """Play a generation and learn from it."""
        asked, population, play_key = self._ask(state)
        return self._learn_from(asked, population, self._play(asked, population, play_key))

    def metrics_like(self, state: Any) -> Any:
        """Return the shapes of the metrics of a generation."""
        asked, population, _ = jax.eval_shape(self._ask, state)
        return jax.eval_shape(self._learn_from, asked, population, self._example)[0]

    def is_ready(self, *args: Any) -> bool:
        """Tell whether there is nothing to compile."""
        return self._is_compiled

    def compile(self, state: Any, metrics: Any, *limits: Any) -> float:
        """Compile for a state like this; return the seconds it took."""
        seconds = self._ask.compile(state)
        asked, population, _ = self._ask(state)
        self._is_compiled = True
        return seconds + self._advance.compile(asked, metrics, population, self._example)

    def __call__(self, state: Any, metrics: Any, num_iterations: Any, until: Any) -> tuple[Any, Any]:
        """Train for so many generations, or until so many env steps are reached."""
        num_done = 0
        while num_done < int(num_iterations) and int(state.env_steps) < int(until):
            state, population, play_key = self._ask(state)
            start = time.perf_counter()
            episodes = self._play(state, population, play_key)
            self._seconds += time.perf_counter() - start
            self._num_played += 1
            state, metrics = self._advance(state, metrics, population, episodes)
            num_done += 1
        return state, metrics

    @property
    def collect_seconds(self) -> float:
        """How long a generation plays, on average over all that were played."""
        return self._seconds / max(self._num_played, 1)

    def _play(self, state: Any, population: Params, key: Key) -> PopulationEpisodes:
        workflow = self._workflow
        check_not_traced(workflow.settings.train.env.name, population)
        # Agents act on one device.
        device = workflow.layout.mesh.devices.flat[0]
        agent_state, population, key = jax.device_put((state.agent_state, population, key), device)
        return self._place(self._host.play(agent_state, population, key, workflow.config.num_episodes))
