"""Hooks: functions that a run calls after every record. Nothing compiled knows of them."""

import functools
import logging
from collections.abc import Callable, Hashable, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from rookery.errors import InvalidInputError, nearest_names
from rookery.policy import Policy
from rookery.report import write_video
from rookery.runs.divergence import DIVERGED
from rookery.runs.files import make_folder
from rookery.runs.policy_files import PolicyName
from rookery.types import Key, PyTree, index_tree, make_key
from rookery.workflows.config import Settings, StopAtConfig, TrainConfig
from rookery.workflows.programs import gather
from rookery.workflows.saved.policies import PolicyPart, policy_in, policy_parts
from rookery.workflows.saved.states import counts_of
from rookery.workflows.training import Training, TrainingState

logger = logging.getLogger(__name__)


class RecordEvent:
    """A record that was just made. A hook may look at it, stop the run, or replace its state."""

    def __init__(
        self,
        settings: Settings,
        training: Training,
        rows: Sequence[dict[str, float]],
        state: TrainingState,
        is_best: bool,
    ) -> None:
        self.rows = rows
        """The metrics of each seed."""
        self.is_best = is_best
        """Whether this record has the best evaluation so far."""
        self.stop_reason: str | None = None
        """Why a hook stops the run; None if none does."""
        self._settings = settings
        self._training = training
        self._state = state

    @functools.cached_property
    def metrics(self) -> dict[str, float]:
        """The metrics of the record; of several seeds, the means over those that did not diverge."""
        if len(self.rows) == 1:
            return self.rows[0]
        rows = [row for row in self.rows if DIVERGED not in row] or list(self.rows)
        names = dict.fromkeys(name for row in rows for name in row if name != "seed")
        return {name: float(np.mean([row[name] for row in rows if name in row])) for name in names}

    @property
    def env_steps(self) -> int:
        """The env steps of the seed with the fewest."""
        return int(min(row["time/total_timesteps"] for row in self.rows))

    @property
    def iterations(self) -> int:
        return int(min(row["time/iterations"] for row in self.rows))

    @property
    def state(self) -> TrainingState:
        """A copy of the training state, which stays valid; the run overwrites its own."""
        return jax.tree.map(jnp.copy, self._state)

    @property
    def policy(self) -> Policy:
        """The policy at this moment; of several seeds, that of the first."""
        return self.policy_of()

    def policy_of(self, policy: str | None = None, seed: int | None = None, individual: str | None = None) -> Policy:
        """Return one of several policies, of one of several seeds, or the fittest individual of evolution."""
        return policy_in(self.policies(), self._training.agent, PolicyName(policy, seed, individual))

    def policies(self) -> list[PolicyPart]:
        """Return all policies at this moment, as copies on the host."""
        state = self._state
        agents, env_steps = gather(jax.tree.map(jnp.copy, (self._training.individuals(state), state.env_steps)))
        return list(policy_parts(self._settings, self._training, agents, env_steps))

    def stop(self, reason: str = "a hook stopped the run") -> None:
        """End the run as if it had reached its end, with a checkpoint; `resume` can continue it."""
        self.stop_reason = reason

    def replace_state(self, state: TrainingState) -> None:
        """Continue with another state, which has the shapes and the env steps of `state`.

        This record is then not the best, because its evaluation is that of the state before.
        """
        if shapes_of(state) != shapes_of(self._state):
            raise InvalidInputError("replace_state: expected a state with the tree, shapes and dtypes of event.state.")
        given, expected = (counts_of(counted.env_steps) for counted in (state, self._state))
        if given != expected:
            raise InvalidInputError(
                f"replace_state: the state is at {given[0]:,} env steps, and the run at {expected[0]:,}: replace the "
                "learner of event.state instead, event.state.replace(learner=...)."
            )
        self.is_best = False
        self._state = self._training.layout.place(gather(state), self._training.specs())

    @property
    def next_state(self) -> TrainingState:
        """The state with which the run goes on."""
        return self._state

    def write_video(self, path: str | Path, key: Key | None = None) -> None:
        """Play one greedy episode and write it as an animation: .gif, .webp or .png."""
        agent_state, evaluator = gather(self._state.agent_state), self._training.evaluator
        if self._settings.train.num_seeds > 1:
            agent_state = index_tree(agent_state, 0)
        key = make_key(self._settings.train.seed) if key is None else key
        write_video(Path(path), evaluator.frames(agent_state, key, evaluator.max_episode_steps))


def shapes_of(tree: PyTree) -> Hashable:
    """Return the structure, shapes and dtypes of a tree, to compare it with another."""
    leaves, structure = jax.tree.flatten(tree)
    return structure, tuple((leaf.shape, leaf.dtype) for leaf in leaves)


Hook = Callable[[RecordEvent], object]
Hooks = Hook | Sequence[Hook]


def as_hooks(on_record: Hooks | None) -> list[Hook]:
    """Return the hooks of an argument `on_record`: one function, several, or none."""
    if on_record is None:
        return []
    hooks = list(on_record) if isinstance(on_record, Sequence) else [on_record]
    for hook in hooks:
        if not callable(hook):
            raise InvalidInputError(
                f"on_record={on_record!r}: expected a function of a RecordEvent, or a list of them."
            )
    return hooks


def configured_hooks(train: TrainConfig) -> list[Hook]:
    """Return the hooks that the config of a run asks for."""
    hooks: list[Hook] = []
    if train.stop_at.value is not None:
        hooks.append(StopAt(train.stop_at, train.total_timesteps))
    if train.video.interval is not None:
        if train.run_dir is None:
            raise InvalidInputError(f"video.interval={train.video.interval} needs a run_dir, where videos are written.")
        hooks.append(Videos(train.video.interval, Path(train.run_dir)))
    return hooks


class StopAt:
    """Stops a run when a metric reaches a value."""

    def __init__(self, config: StopAtConfig, total_timesteps: int) -> None:
        assert config.value is not None
        self._metric, self._value = config.metric, config.value
        self._total_timesteps = total_timesteps
        self._was_recorded = False

    def __call__(self, event: RecordEvent) -> None:
        value = event.metrics.get(self._metric)
        self._was_recorded |= value is not None
        if value is not None and value >= self._value:
            event.stop(f"{self._metric} is {value:g} and reached stop_at.value={self._value:g}")
        elif event.env_steps >= self._total_timesteps and not self._was_recorded and jax.process_index() == 0:
            near = nearest_names(self._metric, event.metrics)
            logger.warning(
                "stop_at.metric=%s was never recorded%s", self._metric, f": did you mean {near[0]}?" if near else "."
            )


class Videos:
    """Writes a video of a greedy episode at every interval of env steps, to the folder `videos` of the run."""

    def __init__(self, interval: int, run_dir: Path) -> None:
        self._interval, self._run_dir = interval, run_dir
        self._last: int | None = None

    def __call__(self, event: RecordEvent) -> None:
        number = event.env_steps // self._interval
        is_due, self._last = number > (self._last or 0), number
        if not is_due or jax.process_index() > 0:
            return
        try:
            path = make_folder(self._run_dir, "videos") / f"{event.env_steps:012d}.gif"
            path.unlink(missing_ok=True)  # a run from elsewhere may have a link there
            event.write_video(path)
        except Exception as error:  # the run does not depend on its pictures
            logger.warning("no video at %s steps: %s", f"{event.env_steps:,}", error)
