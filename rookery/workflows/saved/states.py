"""Training states as checkpoints of a run: saved with their policies, and restored."""

from functools import partial
from typing import Any

import jax
from jax.tree_util import KeyPath, keystr

from rookery.configuration import field_names, plain, to_mapping
from rookery.distributed import SAME
from rookery.hyperparameters import Hyperparameters, hyperparameters_from
from rookery.learning.counter import Counter
from rookery.metrics import RunningMetrics, running_shapes
from rookery.replay_buffers.resizing import is_replay, resized, with_rings_of
from rookery.runs.checkpoint import Checkpoint, Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.log import Progress, RunLog
from rookery.types import Key
from rookery.workflows.config import Settings
from rookery.workflows.programs import Layout, gather
from rookery.workflows.saved.policies import saved_policies
from rookery.workflows.training import Training, TrainingState

OUTSIDE = "outside"
"""The entry of a checkpoint's metadata for `Environments.get_state`."""
HYPERPARAMETERS = "hyperparameters"
"""The entry of a checkpoint's metadata for the hyper-parameters of its state, as in a config."""


class SavedStates:
    """Saves the states of a training, and restores them."""

    def __init__(self, settings: Settings, training: Training, layout: Layout) -> None:
        self._settings = settings
        self._training = training
        self._layout = layout

    def of(self, run: RunDirectory) -> Checkpoints:
        """Return the checkpoints of a run."""
        return Checkpoints(run.checkpoints_path, self._settings.train.checkpoint.keep)

    def save(self, run: RunDirectory | None, log: RunLog, state: TrainingState, metrics: RunningMetrics) -> None:
        """Save a checkpoint with the policies; only one process has a run to save to."""
        tree = gather((self._part(state), metrics))
        if run is None:
            return
        metadata = log.progress.to_mapping() | {
            OUTSIDE: self._training.environments.get_state(),
            HYPERPARAMETERS: to_mapping(self._settings.hyperparameters),
        }
        log.sync()
        files = saved_policies(self._settings, self._training, tree[0], log.progress.evaluations)
        self.of(run).save(tree, env_steps_of(state), metadata, files, also_keep=log.progress.best_step)

    def restore(
        self, run: RunDirectory, key: Key, step: int | None = None
    ) -> tuple[TrainingState, RunningMetrics, Progress]:
        """Return the state, the metrics since the last record and the progress of a checkpoint: of `step`, or the last.

        The state has the hyper-parameters of this training, also if it was saved with others.
        """
        shape = self._training.state_shape(key)
        metrics_shape = running_shapes(self._training.metrics_shape(shape))
        manifest = self.of(run).open_manifest(step)
        saved_with = self._hyperparameters_of(run, manifest)
        is_changed = to_mapping(saved_with) != to_mapping(self._settings.hyperparameters)
        if is_changed:
            shape = self.with_hyperparameters(shape, saved_with)
        expected = self._part(shape)
        (state, metrics), metadata = self.of(run).restore((_as_saved(expected, manifest), metrics_shape), step)
        state = with_rings_of(state, expected)
        self._training.environments.set_state(metadata.pop(OUTSIDE))
        metadata.pop(HYPERPARAMETERS, None)
        if is_changed:
            state = self.with_hyperparameters(state, self._settings.hyperparameters)
        state = self._layout.place(state, self._part(self._training.specs()))
        if state.learner.lacks_replay:
            state = self._training.refill(state)
        progress = Progress.from_mapping(metadata)
        if progress.best_step not in self.of(run).steps():
            progress.best = None
        return state, self._layout.place(metrics, SAME), progress

    def with_hyperparameters(self, state: TrainingState, hyperparameters: Hyperparameters) -> TrainingState:
        """Replace the hyper-parameters of all seeds of a state."""
        return state.replace(learner=state.learner.with_hyperparameters(self._layout.for_seeds(hyperparameters)))

    def _hyperparameters_of(self, run: RunDirectory, manifest: Checkpoint) -> Hyperparameters:
        """Return the hyper-parameters of a checkpoint; an older one has those of the run's config."""
        kind = type(self._settings.hyperparameters)
        values = plain(manifest.metadata.get(HYPERPARAMETERS) or run.config.get("agent", {}), "agent")
        known = {name: values[name] for name in field_names(kind) if name in values}
        return hyperparameters_from(kind, known, self._settings.train.total_timesteps)

    def _part(self, state: Any) -> Any:
        """Return the part of a state that checkpoints contain."""
        if self._settings.train.checkpoint.replay:
            return state
        return state.replace(learner=state.learner.without_replay())


def _as_saved(state: TrainingState, manifest: Checkpoint) -> TrainingState:
    """Return the shapes of a state with the replay buffers of a checkpoint, which fit the budget that its run had."""

    def fit(path: KeyPath, node: Any) -> Any:
        if not is_replay(node):
            return node
        dtype, ring = next(iter(node.storage.items()))
        saved = manifest.shape_of(f"[0]{keystr(path)}.storage[{dtype!r}]")
        if saved is None or len(saved) != len(ring.shape) or saved[-2] < 1:
            return node
        return jax.eval_shape(partial(resized, rows=saved[-2]), node)

    fitted: TrainingState = jax.tree_util.tree_map_with_path(fit, state, is_leaf=is_replay)
    return fitted


def counts_of(counter: Counter) -> list[int]:
    """Return the count of each seed."""
    return counter.to_ints() if counter.low.ndim else [int(counter)]


def env_steps_of(state: TrainingState) -> int:
    """Return the env steps of the seed with the fewest."""
    return min(counts_of(state.env_steps))
