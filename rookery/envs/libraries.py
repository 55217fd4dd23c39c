"""The table of environment libraries, on the device and on the host: plain data that imports none of them."""

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rookery.errors import missing_extra


@dataclass(frozen=True)
class Library:
    """A library whose environments compile onto the device."""

    module: str
    """The module that adapts it."""
    requires: str | None = None
    """The optional package that it wraps."""
    extra: str | None = None
    """The extra that installs the package."""

    @property
    def installed(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None

    def check_installed(self) -> None:
        """Raise an error that names the extra unless the package is installed."""
        if not self.installed:
            raise missing_extra(str(self.requires), str(self.extra))

    def load(self) -> ModuleType:
        """Import the module."""
        self.check_installed()
        return importlib.import_module(self.module)


@dataclass(frozen=True, kw_only=True)
class HostLibrary(Library):
    """A library whose environments are Python objects, which cannot be compiled."""

    names_fn: str
    """The function of the module that returns the names of the environments."""
    make_fn: str
    """The function of the module that `make_host_env` calls."""
    has_several_agents: bool = False
    has_threads: bool = False
    """Whether it steps its envs in threads of its own, and cannot use processes."""
    clipping_option: str | None = None
    """The option that clips rewards to their sign. Workflows leave it out and clip only what is learned from."""
    clips_by_default: bool = False
    """Whether workflows clip if the option is not given."""
    training_options: tuple[str, ...] = ()
    """Options that help learning and change what an episode is: evaluation leaves them out."""

    def clips_rewards(self, kwargs: Mapping[str, Any]) -> bool:
        """Tell whether a workflow whose envs are made with these options learns from the signs of their rewards."""
        return bool(self.clipping_option and kwargs.get(self.clipping_option, self.clips_by_default))

    def kwargs_of_envs(self, kwargs: Mapping[str, Any], is_evaluation: bool) -> dict[str, Any]:
        """Leave out the options that a workflow does not pass to its envs."""
        left_out = {self.clipping_option, *(self.training_options if is_evaluation else ())}
        return {name: value for name, value in kwargs.items() if name not in left_out}


LIBRARIES: dict[str, Library] = {
    "classic": Library("rookery.envs.classic"),
    "probe": Library("rookery.testing.probe_envs"),
    "brax": Library("rookery.envs.brax", requires="brax", extra="brax"),
    "gymnax": Library("rookery.envs.gymnax", requires="gymnax", extra="gymnax"),
    "jumanji": Library("rookery.envs.jumanji", requires="jumanji", extra="jumanji"),
    "gymnasium": HostLibrary(
        module="rookery.runners.envs.libraries", names_fn="gymnasium_names", make_fn="gymnasium_factory"
    ),
    "ale": HostLibrary(
        module="rookery.runners.envs.atari",
        requires="ale_py",
        extra="atari",
        names_fn="atari_names",
        make_fn="make_atari_games",
        has_threads=True,
        clipping_option="reward_clipping",
        clips_by_default=True,
        training_options=("episodic_life",),
    ),
    "pettingzoo": HostLibrary(
        module="rookery.runners.envs.pettingzoo",
        requires="pettingzoo",
        extra="pettingzoo",
        names_fn="pettingzoo_names",
        make_fn="pettingzoo_factory",
        has_several_agents=True,
    ),
    "envpool": HostLibrary(
        module="rookery.runners.envs.envpool",
        requires="envpool",
        extra="envpool",
        names_fn="envpool_names",
        make_fn="EnvPoolEnvs",
        has_threads=True,
        clipping_option="reward_clip",
        training_options=("episodic_life",),
    ),
}
"""Third parties add device libraries by entry points: see `rookery.envs.registration`."""


def find_host_library(name: str) -> HostLibrary | None:
    """Return the host library of an environment like `gymnasium/CartPole-v1`; None if it is on the device."""
    library = LIBRARIES.get(name.partition("/")[0])
    return library if isinstance(library, HostLibrary) else None


def is_on_host(name: str) -> bool:
    """Tell whether an environment, or a library, is on the host."""
    return find_host_library(name) is not None
