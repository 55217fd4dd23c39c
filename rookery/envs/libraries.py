"""The table of device libraries and host libraries. It imports none of them."""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from rookery.errors import missing_extra

HOST_ENTRY_POINT_GROUP = "rookery.host_envs"


@dataclass(frozen=True)
class Library:
    """A library whose environments compile onto the device."""

    module: str
    """The module of the adapter."""
    requires: str | None = None
    """The optional package that the module wraps."""
    extra: str | None = None
    """The extra that installs the package."""

    @property
    def installed(self) -> bool:
        return self.requires is None or importlib.util.find_spec(self.requires) is not None

    def check_installed(self) -> None:
        """Raise an error that names the extra if the package is not installed."""
        if not self.installed:
            raise missing_extra(str(self.requires), str(self.extra))

    def load(self) -> ModuleType:
        """Import the module."""
        self.check_installed()
        return importlib.import_module(self.module)


@dataclass(frozen=True, kw_only=True)
class HostLibrary(Library):
    """A library whose environments are Python objects, which cannot be compiled."""

    make_fn: str
    """The function of the module that `make_host_env` calls."""
    names_fn: str | None = None
    """The function of the module that returns the names of the environments; None if there is one, with the name of the
    library."""
    has_several_agents: bool = False
    has_threads: bool = False
    """Whether the library steps its envs in its own threads, so that they cannot run in processes."""
    is_external: bool = False
    """Whether simulators are in control: there is one of each, and it has no episodes of its own to evaluate on."""
    clipping_option: str | None = None
    """The option that clips rewards to their sign. Workflows omit it and clip rewards for training only."""
    clips_by_default: bool = False
    """Whether workflows clip if the option is not given."""
    training_options: tuple[str, ...] = ()
    """Options that help training but change episodes; evaluation omits them."""

    @property
    def is_one_env(self) -> bool:
        """Whether the name of the library is that of its only environment."""
        return self.names_fn is None

    def clips_rewards(self, kwargs: Mapping[str, Any]) -> bool:
        """Return whether a workflow with these options clips rewards for training."""
        return bool(self.clipping_option and kwargs.get(self.clipping_option, self.clips_by_default))

    def kwargs_of_envs(self, kwargs: Mapping[str, Any], is_evaluation: bool) -> dict[str, Any]:
        """Return the options that a workflow passes to its envs."""
        omitted = {self.clipping_option, *(self.training_options if is_evaluation else ())}
        return {name: value for name, value in kwargs.items() if name not in omitted}


@dataclass(frozen=True, kw_only=True)
class InstalledHostLibrary(HostLibrary):
    """A host library of another package, registered under the entry-point group `rookery.host_envs`."""

    module: str = "rookery.runners.envs.installed"
    names_fn: str = "names"
    make_fn: str = "factory"
    entry_point: importlib.metadata.EntryPoint

    def load(self) -> Any:
        return super().load().InstalledEnvs(self.entry_point.load())


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
    "served": HostLibrary(
        module="rookery.serving.env",
        requires="uvicorn",
        extra="serve",
        make_fn="make_served_env",
        has_threads=True,
        is_external=True,
    ),
    "served_agents": HostLibrary(
        module="rookery.serving.env",
        requires="uvicorn",
        extra="serve",
        make_fn="make_served_agents",
        has_several_agents=True,
        has_threads=True,
        is_external=True,
    ),
}
"""Third parties add libraries by entry points: see `rookery.envs.registration`."""

OWN_LIBRARIES: dict[str, Library] = {
    "own": Library("rookery.envs.own"),
    "own_host": HostLibrary(module="rookery.runners.envs.own", names_fn="own_names", make_fn="own_factory"),
    "own_agents": HostLibrary(
        module="rookery.runners.envs.own",
        names_fn="own_names",
        make_fn="own_agents_factory",
        has_several_agents=True,
    ),
    "own_vector": HostLibrary(
        module="rookery.runners.envs.own", names_fn="own_names", make_fn="make_own_vector_env", has_threads=True
    ),
    "own_external": HostLibrary(
        module="rookery.runners.envs.own",
        names_fn="own_names",
        make_fn="make_own_external_env",
        has_threads=True,
        is_external=True,
    ),
    "own_external_agents": HostLibrary(
        module="rookery.runners.envs.own",
        names_fn="own_names",
        make_fn="make_own_external_agents",
        has_several_agents=True,
        has_threads=True,
        is_external=True,
    ),
}
"""The environments that a program passes to `rookery.train`; they are not listed."""


def find_host_library(name: str) -> HostLibrary | None:
    """Return the host library of an environment like `gymnasium/CartPole-v1`; None if it is on the device."""
    prefix = name.partition("/")[0]
    library = LIBRARIES.get(prefix) or OWN_LIBRARIES.get(prefix) or installed_host_libraries().get(prefix)
    return library if isinstance(library, HostLibrary) else None


def installed_host_libraries() -> dict[str, InstalledHostLibrary]:
    """Return the host libraries of other packages."""
    points = importlib.metadata.entry_points(group=HOST_ENTRY_POINT_GROUP)
    return {point.name: InstalledHostLibrary(entry_point=point) for point in points}


def is_on_host(name: str) -> bool:
    """Return whether an environment, or a library, is on the host."""
    return find_host_library(name) is not None
