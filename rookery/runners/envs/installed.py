"""Host environments of installed packages, which register under the entry-point group `rookery.host_envs`."""

from collections.abc import Callable, Iterable
from typing import Any, Protocol

import gymnasium

from rookery.errors import unknown_name
from rookery.runners.envs.own import with_render_mode


class HostEnvLibrary(Protocol):
    """The interface of a library of host environments."""

    def names(self) -> Iterable[str]:
        """Return the names of its environments, without the prefix of the library."""

    def make(self, name: str, **kwargs: Any) -> gymnasium.Env:
        """Make one environment; `render_mode` is among the arguments if it is rendered."""


class InstalledEnvs:
    """The environments of one library."""

    def __init__(self, library: HostEnvLibrary) -> None:
        self.names = library.names
        self._make_fn = library.make

    def factory(
        self, name: str, episode_length: int | None, render: bool, kwargs: dict[str, Any]
    ) -> Callable[[int], gymnasium.Env]:
        """Return what makes an environment; `TransportVectorEnv` limits its episodes."""
        known = list(self.names())
        if name not in known:
            raise unknown_name("environment", name, known)
        make_fn, options = self._make_fn, with_render_mode(self._make_fn, kwargs) if render else kwargs

        # It is pickled by value and refers to nothing in Rookery, which other processes then need not import.
        def make_env(index: int) -> gymnasium.Env:
            return make_fn(name, **options)

        return make_env
