"""Device environments: pure `reset` and `step` functions that compile and vectorize.

`BraxAdapter`, `GymnaxAdapter` and `JumanjiAdapter` wrap an env of their library; they are imported on first use.
"""

from typing import Any

from rookery.envs.env import Env, EnvState, MultiAgentEnv, Wrapper
from rookery.envs.libraries import LIBRARIES, is_on_host
from rookery.envs.registration import (
    create_env,
    create_wrapped_brax_env,
    create_wrapped_classic_env,
    create_wrapped_gymnax_env,
    create_wrapped_jumanji_env,
    env_names,
    is_installed,
    library_names,
    load_library,
    make_env,
    wrap_env,
)
from rookery.envs.wrappers import (
    ActionRepeat,
    ActionSquashWrapper,
    AutoresetMode,
    EnvPoolAutoresetWrapper,
    EpisodeWrapper,
    FastAutoresetWrapper,
    FrameStackWrapper,
    NormalAutoresetWrapper,
    ObsFlattenWrapper,
    RewardScaleWrapper,
    VectorWrapper,
    VmapWrapper,
)

__all__ = [
    "ActionRepeat",
    "ActionSquashWrapper",
    "AutoresetMode",
    "Env",
    "EnvPoolAutoresetWrapper",
    "EnvState",
    "EpisodeWrapper",
    "FastAutoresetWrapper",
    "FrameStackWrapper",
    "MultiAgentEnv",
    "NormalAutoresetWrapper",
    "ObsFlattenWrapper",
    "RewardScaleWrapper",
    "VectorWrapper",
    "VmapWrapper",
    "Wrapper",
    "create_env",
    "create_wrapped_brax_env",
    "create_wrapped_classic_env",
    "create_wrapped_gymnax_env",
    "create_wrapped_jumanji_env",
    "env_names",
    "is_installed",
    "library_names",
    "make_env",
    "wrap_env",
]


def __getattr__(name: str) -> Any:
    for library in LIBRARIES:
        if name == f"{library.capitalize()}Adapter" and not is_on_host(library):
            return getattr(load_library(library), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
