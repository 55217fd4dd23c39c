"""Connectors: transformations between env and policy, on whole batches, each with a declared space.

What a connector keeps per column is reset with every episode. What it learns over the run, such as statistics, is its
state, which is saved.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rookery.errors import InvalidInputError, check_count
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple

Tree = Any


@dataclass(slots=True)
class Rows:
    """Where the observations come from that a connector transforms."""

    columns: np.ndarray
    """The column of each row, `[N]`."""
    starts: np.ndarray
    """True where an episode begins, `[N]`."""
    actions: Tree
    """The last actions in these columns, meaningless where an episode starts. None before the first action."""
    rewards: np.ndarray
    """The rewards of these actions, `[N]`."""


class ObsConnector(ABC):
    """Transforms the observations of the policy."""

    @abstractmethod
    def bind(self, obs_space: Space, action_space: Space) -> Space:
        """Prepare for these spaces; return the space of the transformed observations."""

    @abstractmethod
    def __call__(self, obs: Tree, rows: Rows) -> Tree:
        """Return the transformed observations `[N, ...]`."""

    def reserve(self, num_columns: int) -> None:  # noqa: B027
        """Make room for `num_columns` columns."""

    def get_state(self) -> dict[str, np.ndarray]:
        """Return what was learned over the run."""
        return {}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:  # noqa: B027
        """Continue from `get_state`."""


class ActionConnector(ABC):
    """Transforms the actions for the env; the stored actions are those of the policy."""

    @abstractmethod
    def bind(self, action_space: Space) -> Space:
        """Prepare for an env with this action space; return the space that the policy acts in."""

    @abstractmethod
    def __call__(self, actions: Tree) -> Tree:
        """Return the transformed actions `[N, ...]`."""


class FlattenObs(ObsConnector):
    """Flattens an observation to one vector; a `Discrete` entry becomes one-hot."""

    def bind(self, obs_space: Space, action_space: Space) -> Space:
        self._space = obs_space
        low, high = _flat_bounds(obs_space)
        return Box(low, high, dtype=np.float32)

    def __call__(self, obs: Tree, rows: Rows) -> np.ndarray:
        return _flatten(self._space, obs, len(rows.columns))


class FrameStack(ObsConnector):
    """Stacks the last `num_frames` observations, oldest first: pixels on the last axis, vectors end to end.

    An episode begins with its first observation repeated.
    """

    def __init__(self, num_frames: int) -> None:
        check_count("num_frames", num_frames)
        self.num_frames = num_frames
        self._frames: np.ndarray | None = None

    def bind(self, obs_space: Space, action_space: Space) -> Space:
        if not isinstance(obs_space, Box) or not obs_space.shape:
            raise InvalidInputError(f"FrameStack needs observations of a Box with axes, got {obs_space}.")
        self._space = obs_space
        repeats = (1,) * (len(obs_space.shape) - 1) + (self.num_frames,)
        return Box(np.tile(obs_space.low, repeats), np.tile(obs_space.high, repeats), dtype=obs_space.dtype)

    def reserve(self, num_columns: int) -> None:
        frames = np.zeros((num_columns, self.num_frames, *self._space.shape), self._space.dtype)
        if self._frames is not None:
            frames[: len(self._frames)] = self._frames
        self._frames = frames

    def __call__(self, obs: np.ndarray, rows: Rows) -> np.ndarray:
        assert self._frames is not None
        frames = self._frames[rows.columns]  # [N, num_frames, ...]
        frames = np.concatenate([frames[:, 1:], obs[:, None]], axis=1)
        frames[rows.starts] = obs[rows.starts][:, None]
        self._frames[rows.columns] = frames
        return np.concatenate(list(np.moveaxis(frames, 1, 0)), axis=-1)


class NormalizeObs(ObsConnector):
    """Subtracts the mean and divides by the standard deviation of all observations so far, entry by entry.

    `update=False` applies the statistics without updating them, for evaluation.
    """

    def __init__(self, clip: float = 10.0, update: bool = True) -> None:
        self.clip = clip
        self.update = update

    def bind(self, obs_space: Space, action_space: Space) -> Space:
        if not isinstance(obs_space, Box):
            raise InvalidInputError(f"NormalizeObs needs observations of a Box, got {obs_space}: flatten them first.")
        shape = obs_space.shape
        self._count, self._mean, self._squares = 0.0, np.zeros(shape), np.zeros(shape)
        return Box(-self.clip, self.clip, shape=shape, dtype=np.float32)

    def __call__(self, obs: np.ndarray, rows: Rows) -> np.ndarray:
        values = obs.astype(np.float64)
        if self.update:
            self._merge(values)
        std = np.sqrt(self._squares / max(self._count, 1.0))
        normalized = (values - self._mean) / np.where(std > 1e-8, std, 1.0)
        return np.clip(normalized, -self.clip, self.clip).astype(np.float32)

    def _merge(self, values: np.ndarray) -> None:
        """Add a batch to the moments (Chan et al., 1983)."""
        count, mean = len(values), values.mean(axis=0)
        total, difference = self._count + count, mean - self._mean
        self._squares += ((values - mean) ** 2).sum(axis=0) + difference**2 * (self._count * count / total)
        self._mean += difference * (count / total)
        self._count = total

    def get_state(self) -> dict[str, np.ndarray]:
        return {"count": np.array(self._count), "mean": self._mean.copy(), "squares": self._squares.copy()}

    def set_state(self, state: Mapping[str, np.ndarray]) -> None:
        self._count = float(state["count"])
        self._mean, self._squares = np.array(state["mean"]), np.array(state["squares"])


class PreviousActionAndReward(ObsConnector):
    """Appends the last action and its reward: zeros at the start of an episode."""

    def bind(self, obs_space: Space, action_space: Space) -> Space:
        self._action_space = action_space
        low, high = _flat_bounds(action_space)
        return Dict(
            {
                "obs": obs_space,
                "previous_action": Box(np.minimum(low, 0), np.maximum(high, 0), dtype=np.float32),
                "previous_reward": Box(-np.inf, np.inf, shape=(1,), dtype=np.float32),
            }
        )

    def __call__(self, obs: Tree, rows: Rows) -> dict[str, Tree]:
        num_rows = len(rows.columns)
        width = len(_flat_bounds(self._action_space)[0])
        actions = np.zeros((num_rows, width), np.float32)
        if rows.actions is not None:
            actions = _flatten(self._action_space, rows.actions, num_rows)
        actions = np.where(rows.starts[:, None], np.float32(0.0), actions)
        rewards = np.where(rows.starts, 0.0, rows.rewards).astype(np.float32)
        return {"obs": obs, "previous_action": actions, "previous_reward": rewards[:, None]}


class Unsquash(ActionConnector):
    """Maps actions in [-1, 1] to the bounds of the env, without clipping."""

    def bind(self, action_space: Space) -> Space:
        if not isinstance(action_space, Box) or not action_space.bounded:
            raise InvalidInputError(f"Unsquash needs a Box of actions with finite bounds, got {action_space}.")
        self._low, self._high = action_space.low.astype(np.float64), action_space.high.astype(np.float64)
        self._dtype = action_space.dtype
        return Box(-1.0, 1.0, shape=action_space.shape, dtype=action_space.dtype)

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        share = (actions.astype(np.float64) + 1.0) / 2.0
        return (self._low * (1.0 - share) + self._high * share).astype(self._dtype)


class ClipActions(ActionConnector):
    """Clips actions to the bounds of the env."""

    def bind(self, action_space: Space) -> Space:
        if not isinstance(action_space, Box):
            raise InvalidInputError(f"ClipActions needs a Box of actions, got {action_space}.")
        self._low, self._high = action_space.low, action_space.high
        return action_space

    def __call__(self, actions: np.ndarray) -> np.ndarray:
        return np.clip(actions, self._low, self._high).astype(self._low.dtype)


def _flat_bounds(space: Space) -> tuple[np.ndarray, np.ndarray]:
    match space:
        case Discrete():
            return np.zeros(space.n, np.float32), np.ones(space.n, np.float32)
        case MultiDiscrete():
            size = int(space.nvec.sum())
            return np.zeros(size, np.float32), np.ones(size, np.float32)
        case MultiBinary():
            size = int(np.prod(space.shape))
            return np.zeros(size, np.float32), np.ones(size, np.float32)
        case Box():
            return space.low.astype(np.float32).ravel(), space.high.astype(np.float32).ravel()
        case Dict() | Tuple():
            parts = [_flat_bounds(subspace) for subspace, _ in _entries(space, None)]
            return np.concatenate([low for low, _ in parts]), np.concatenate([high for _, high in parts])
    raise InvalidInputError(f"{space} cannot be flattened.")


def _flatten(space: Space, values: Tree, num_rows: int) -> np.ndarray:
    match space:
        case Discrete():
            return np.eye(space.n, dtype=np.float32)[np.asarray(values).reshape(num_rows) - space.start]
        case MultiDiscrete():
            columns = (np.asarray(values) - space.start).reshape(num_rows, -1)
            sizes = space.nvec.ravel()
            return np.concatenate([np.eye(n, dtype=np.float32)[columns[:, i]] for i, n in enumerate(sizes)], axis=1)
        case Dict() | Tuple():
            return np.concatenate([_flatten(part, value, num_rows) for part, value in _entries(space, values)], axis=1)
    return np.asarray(values).astype(np.float32).reshape(num_rows, -1)


def _entries(space: Dict | Tuple, values: Tree) -> list[tuple[Space, Tree]]:
    """Return the spaces inside a space, each with its part of the values."""
    if isinstance(space, Dict):
        return [(part, None if values is None else values[name]) for name, part in space.spaces.items()]
    return [(part, None if values is None else values[index]) for index, part in enumerate(space.spaces)]
