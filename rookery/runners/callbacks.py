"""Callbacks of a runner. Hooks that are not overridden cost nothing."""

import logging
from dataclasses import dataclass

from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.faults import Fault, FaultKind
from rookery.runners.recording.episode import LiveEpisode
from rookery.runners.sampling import Sample

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EpisodeEvent:
    """Something happened in an episode."""

    base_env: BaseEnv
    episode: LiveEpisode


@dataclass(frozen=True, slots=True)
class EpisodeEndEvent:
    """An episode is over; `fault` is set if it failed."""

    base_env: BaseEnv
    episode: LiveEpisode
    fault: Fault | None


@dataclass(frozen=True, slots=True)
class FaultEvent:
    """An environment failed."""

    base_env: BaseEnv
    episode: LiveEpisode
    fault: Fault


@dataclass(frozen=True, slots=True)
class SampleEvent:
    """A sample is complete and about to be returned."""

    base_env: BaseEnv
    sample: Sample


class Callbacks:
    """Override the hooks that you need: created, start, every step and end of each episode, and its fault."""

    def on_episode_created(self, event: EpisodeEvent) -> None:
        """An episode is about to be requested: only its env and its seed are known."""

    def on_episode_start(self, event: EpisodeEvent) -> None:
        """The first observations of an episode have arrived."""

    def on_episode_step(self, event: EpisodeEvent) -> None:
        """An episode made a step."""

    def on_env_fault(self, event: FaultEvent) -> None:
        """An environment failed."""

    def on_episode_end(self, event: EpisodeEndEvent) -> None:
        """An episode is over, with or without a fault."""

    def on_sample_end(self, event: SampleEvent) -> None:
        """A sample is complete."""

    def overridden(self) -> set[str]:
        """Return the names of the overridden hooks."""
        hooks = [name for name in vars(Callbacks) if name.startswith("on_")]
        return {name for name in hooks if getattr(type(self), name) is not getattr(Callbacks, name)}


class FaultNotices(Callbacks):
    """Logs the first fault of each kind; records count all of them."""

    def __init__(self) -> None:
        self._noticed: set[FaultKind] = set()

    def on_env_fault(self, event: FaultEvent) -> None:
        self.notice(event.fault)

    def notice(self, fault: Fault, runner: int | None = None) -> None:
        """Log a fault in one line if it is the first of its kind; name the runner if there are several."""
        kind = fault.failed.kind
        if kind not in self._noticed:
            self._noticed.add(kind)
            text = " ".join(str(fault).split())
            text = text if runner is None else f"runner {runner}, {text}"
            logger.warning("%s Faults like this are counted in faults/%s and not shown again.", text, kind)
