"""What all tests share: strict promotion, checked shapes, a compilation cache, and small envs and agents."""

import contextlib
import ctypes
import gc
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Variables, so that child processes have them too.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of what is run here is over at once: compile in less time to slower programs, and the same program once.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).parent.parent / ".cache" / "jax"))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0")
# Child processes keep bytecode: without it, each needs a second more to import the package.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import cloudpickle
import jax
import jax.numpy as jnp
import jaxtyping
import pytest
from jax._src import compiler

import tests
from rookery.envs import EnvState, Wrapper
from rookery.sample_batch import SampleBatch
from rookery.testing.probe_envs import CounterEnv
from rookery.types import Array, Key, PyTreeDict

# Workers unpickle the environments of tests without importing their modules, which would take most of the time.
cloudpickle.register_pickle_by_value(tests)

# The background jobs of a shell ignore SIGINT, which tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
# Tracing makes many objects that stay: look less often for those that do not.
gc.set_threshold(50_000, 20, 100)
# Set here and not in a fixture, so that fixtures of every scope run under them too.
jax.config.update("jax_numpy_rank_promotion", "raise")
jax.config.update("jax_numpy_dtype_promotion", "strict")
# Shapes in annotations are checked. This works only before the first import of the package: none of the above needs it.
# Not those of `Experience`, which also holds host arrays, or the specs and shapes of arrays.
LEARNING = {path.stem for path in (Path(__file__).parent.parent / "rookery" / "learning").glob("*.py")} - {"experience"}
jaxtyping.install_import_hook(
    [*(f"rookery.learning.{name}" for name in sorted(LEARNING)), "rookery.evolution", "rookery.replay_buffers"],
    "beartype.beartype",
)


@pytest.fixture(autouse=True)
def promotion(request: pytest.FixtureRequest) -> Iterator[None]:
    """Relax the strict promotion for tests marked `third_party`."""
    if request.node.get_closest_marker("third_party") is None:
        yield
        return
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.fixture
def collecting_timed() -> None:
    """Let trainings end with the program that times how experience is collected on the device."""


@pytest.fixture(autouse=True)
def collecting_not_timed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave that program out: it is the same for all methods of a family."""
    from rookery.workflows.device_training import DeviceTraining  # under the import hook
    from rookery.workflows.evolution.generations import DeviceGenerations

    if "collecting_timed" not in request.fixturenames:
        for training in (DeviceTraining, DeviceGenerations):
            monkeypatch.setattr(training, "collect_seconds", lambda self, state: 0.0)


class StaggeredCounter(Wrapper):
    """The counter env with episodes of 1 to 5 steps: one that starts at s terminates after 1 + s mod 5."""

    def __init__(self) -> None:
        super().__init__(CounterEnv())

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        after = self.env.step(env_state, action)
        start, count = after.obs
        return after.replace(done=(count >= 1.0 + start % 5.0).astype(jnp.float32))


@pytest.fixture
def staggered_counter() -> StaggeredCounter:
    """One bare env whose episodes end at different times."""
    return StaggeredCounter()


class StartReward(StaggeredCounter):
    """The staggered counter env whose only reward is its start, at the last step: the return names the episode."""

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        after = super().step(env_state, action)
        return after.replace(reward=after.done * after.obs[0])


@pytest.fixture
def start_reward() -> StartReward:
    """One bare env whose return tells which episode it was, and so how long it must have been."""
    return StartReward()


class CallCounter:
    """Counts at run time how often compiled code passes a point."""

    def __init__(self) -> None:
        self._num_calls = 0

    def mark(self) -> None:
        """Put this into traced code: each time the code is executed counts, once for a whole batch under `vmap`."""
        jax.debug.callback(self._count)

    def _count(self) -> None:
        self._num_calls += 1

    @property
    def num_calls(self) -> int:
        jax.effects_barrier()
        return self._num_calls


class WatchedEnv(Wrapper):
    """Counts how often `reset` and `step` of one env are computed."""

    def __init__(self, env: Any) -> None:
        super().__init__(env)
        self.resets, self.steps = CallCounter(), CallCounter()

    def reset(self, key: Key) -> EnvState:
        self.resets.mark()
        return self.env.reset(key)

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        self.steps.mark()
        return self.env.step(env_state, action)


@pytest.fixture
def watch() -> Callable[[Any], WatchedEnv]:
    """Wrap a bare env so that the computed resets and steps are counted."""
    return WatchedEnv


def counting_action_fn(agent_state: Any, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Remember the number of steps since the episode began; act on its parity and tell what was remembered."""
    extras = sample_batch.extras.policy_extras
    memory = jnp.where(extras.episode_start == 1, 0, extras.carry)
    return memory % 2, PyTreeDict(carry=memory + 1, memory=memory)


@pytest.fixture
def counting_agent() -> Callable[..., tuple[Array, PyTreeDict]]:
    """A recurrent action function whose carry must equal the number of steps since the episode began."""
    return counting_action_fn


def cue_action_fn(agent_state: Any, sample_batch: SampleBatch, key: Key) -> tuple[Array, PyTreeDict]:
    """Remember the first observation of the episode; act on its sign, which solves `probe/memory`."""
    extras = sample_batch.extras.policy_extras
    cue = jnp.where(extras.episode_start == 1, sample_batch.obs[..., 0], extras.carry)
    return (cue > 0).astype(jnp.int32), PyTreeDict(carry=cue)


@pytest.fixture
def cue_agent() -> Callable[..., tuple[Array, PyTreeDict]]:
    """A recurrent action function that earns 1 in every episode of `probe/memory` if its carry is handled rightly."""
    return cue_action_fn


MAX_MEMORY_MAPS = 6_000
"""Compiled programs are mapped into memory. This many take 1.7 GB with all that JAX keeps for each."""


@pytest.fixture(autouse=True, scope="module")
def few_memory_maps() -> Iterator[None]:
    """Let go of the programs of earlier modules before there are too many."""
    yield
    maps = Path("/proc/self/maps")
    if maps.exists() and maps.read_bytes().count(b"\n") > MAX_MEMORY_MAPS:
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(AttributeError):  # not in every C library
            ctypes.CDLL(None).malloc_trim(0)  # otherwise it keeps most of the memory that was freed


def compile_with(monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]) -> None:
    """Optimize programs, by these options of XLA."""
    get_compile_options = compiler.get_compile_options  # JAX has no setting for it that holds for all programs

    def with_options(*args: Any, env_options_overrides: dict[str, Any] | None = None, **kwargs: Any) -> Any:
        overrides = options | dict(env_options_overrides or {})
        return get_compile_options(*args, env_options_overrides=overrides, **kwargs)

    monkeypatch.setattr(compiler, "get_compile_options", with_options)
    jax.config.update("jax_disable_most_optimizations", False)


@pytest.fixture
def optimized_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile to the fastest programs, as users run them: where rounding counts."""
    compile_with(monkeypatch, {"xla_cpu_use_fusion_emitters": True})
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture
def fast_programs(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compile to programs that are nearly as fast as those of users, in a third of the time: for long runs."""
    compile_with(monkeypatch, {"xla_backend_optimization_level": 1})
    yield
    jax.config.update("jax_disable_most_optimizations", True)
