"""Every number of the vectorized counter env, in all four autoreset modes, equals a simulation in plain Python."""

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import AutoresetMode, Env, EnvState, VectorWrapper, create_env, wrap_env
from rookery.testing.probe_envs import CounterEnv
from rookery.types import make_key

NUM_STEPS, NUM_ENVS = 30, 4

every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)
restarting_modes = pytest.mark.parametrize(
    "mode", [mode for mode in AutoresetMode if mode is not AutoresetMode.DISABLED], ids=lambda mode: mode.name
)


def outputs(state: EnvState) -> dict[str, Any]:
    return {"obs": state.obs, "reward": state.reward, "done": state.done, **state.info}


@functools.partial(jax.jit, static_argnames=("env", "num_steps"))
def play(env: VectorWrapper, key: Any, num_steps: int) -> dict[str, Any]:
    def step(state: EnvState, _: None) -> tuple[EnvState, dict[str, Any]]:
        state = env.step(state, jnp.zeros((env.num_envs,), jnp.int32))
        return state, outputs(state)

    state = env.reset(key)
    _, rows = jax.lax.scan(step, state, length=num_steps)
    return jax.tree.map(lambda first, rest: jnp.concatenate([first[None], rest]), outputs(state), rows)


def record(env: VectorWrapper, key: Any, num_steps: int = NUM_STEPS) -> dict[str, Any]:
    """Step with action 0 and return every output in time, `[1 + num_steps, B, ...]`; row 0 is the reset."""
    return jax.tree.map(np.asarray, play(env, key, num_steps))


def starts_of(rows: dict[str, Any]) -> list[list[float]]:
    """The starts that each env showed, one per episode and in order."""
    return [[start for start, count in rows["obs"][:, env] if count == 0] for env in range(rows["obs"].shape[1])]


def simulate(
    mode: AutoresetMode,
    starts: Iterator[float],
    length_of: Callable[[float], int | None],
    episode_length: int | None,
    discount: float,
    num_steps: int = NUM_STEPS,
) -> Iterator[dict[str, Any]]:
    """Play the counter env by the words of the specification, one output row at a time."""

    def first_row(start: float) -> dict[str, Any]:
        row = dict.fromkeys(("reward", "done", "termination", "truncation", "steps", "episode_return", "autoreset"), 0)
        return {**row, "obs": (start, 0), "ori_obs": (start, 0), "episode_start": 1}

    start, count, episode_return, ended = next(starts), 0, 0.0, False
    row = first_row(start)
    yield row
    for _ in range(num_steps):
        if ended and mode is AutoresetMode.DISABLED:
            row = {**row, "reward": 0}
            yield row
            continue
        if ended and mode is AutoresetMode.ENVPOOL:
            start, count, episode_return, ended = next(starts), 0, 0.0, False
            row = {**first_row(start), "autoreset": 1}
            yield row
            continue
        count += 1
        episode_return += discount ** (count - 1) * count
        termination = length_of(start) is not None and count >= length_of(start)
        truncation = episode_length is not None and count >= episode_length and not termination
        ended = termination or truncation
        row = {
            "obs": (start, count),
            "ori_obs": (start, count),
            "reward": count,
            "done": float(ended),
            "termination": float(termination),
            "truncation": float(truncation),
            "steps": count,
            "episode_return": episode_return,
            "episode_start": 0,
            "autoreset": 0,
        }
        if ended and mode in (AutoresetMode.NORMAL, AutoresetMode.FAST):
            start, count, episode_return, ended = next(starts), 0, 0.0, False
            row = {**row, "obs": (start, 0), "episode_start": 1}
        yield row


def assert_equals_simulation(
    rows: dict[str, Any],
    mode: AutoresetMode,
    length_of: Callable[[float], int | None],
    episode_length: int | None,
    discount: float,
) -> None:
    starts = starts_of(rows)
    names = set(rows) - (set() if mode is AutoresetMode.ENVPOOL else {"autoreset"})
    for env in range(NUM_ENVS):
        expected = list(simulate(mode, iter(starts[env]), length_of, episode_length, discount))
        for name in names:
            np.testing.assert_allclose(
                rows[name][:, env],
                np.array([row[name] for row in expected], np.float64),
                rtol=1e-6 if name == "episode_return" and discount != 1.0 else 0,
                err_msg=f"{name} of env {env}",
            )


@every_mode
@pytest.mark.parametrize(("episode_length", "discount"), [(None, 1.0), (3, 0.9)])
def test_envs_that_end_at_different_times_are_as_simulated(
    mode: AutoresetMode, episode_length: int | None, discount: float, staggered_counter: Env
) -> None:
    env = wrap_env(
        staggered_counter,
        episode_length=episode_length,
        parallel=NUM_ENVS,
        autoreset_mode=mode,
        discount=discount,
        record_ori_obs=True,
        pool_size=3 if mode is AutoresetMode.FAST else 1,
    )
    rows = record(env, jax.random.key(0))
    assert_equals_simulation(rows, mode, lambda start: 1 + int(start) % 5, episode_length, discount)
    if mode in (AutoresetMode.NORMAL, AutoresetMode.ENVPOOL):
        starts = [start for env_starts in starts_of(rows) for start in env_starts]
        assert len(starts) == len(set(starts))
        # Below the limit of 3 an episode terminates, at the limit it does both at once, above it is cut.
        assert {1 + int(start) % 5 for start in starts} == {1, 2, 3, 4, 5}


@every_mode
@pytest.mark.parametrize(
    ("terminates_after", "episode_length", "dict_obs"),
    [(None, 1, False), (4, 4, True)],
    ids=["truncation after every step", "both ends in the same step, dict observations"],
)
def test_episodes_of_equal_length_are_as_simulated(
    mode: AutoresetMode, terminates_after: int | None, episode_length: int, dict_obs: bool
) -> None:
    env = create_env(
        "probe/counter",
        episode_length=episode_length,
        parallel=NUM_ENVS,
        autoreset_mode=mode,
        discount=0.9,
        record_ori_obs=True,
        terminates_after=terminates_after,
        dict_obs=dict_obs,
    )
    rows = record(env, jax.random.key(1))
    if dict_obs:
        for name in ("obs", "ori_obs"):
            rows[name] = np.stack([rows[name]["start"], rows[name]["count"]], axis=-1)
    assert_equals_simulation(rows, mode, lambda start: terminates_after, episode_length, 0.9)


@every_mode
def test_outputs_have_the_dtypes_of_the_specification(mode: AutoresetMode) -> None:
    env = create_env("probe/counter", episode_length=4, parallel=2, autoreset_mode=mode, record_ori_obs=True)
    rows = jax.eval_shape(lambda key: play(env, key, 5), jax.random.key(0))
    assert rows["steps"].dtype == np.int32
    for name in set(rows) - {"steps"}:
        assert rows[name].dtype == np.float32, name


@every_mode
def test_what_is_not_asked_for_is_not_recorded(mode: AutoresetMode) -> None:
    env = create_env("probe/counter", episode_length=4, autoreset_mode=mode, discount=None, record_ori_obs=False)
    info = jax.eval_shape(env.reset, jax.random.key(0)).info
    assert set(info) - {"autoreset"} == {"steps", "termination", "truncation", "episode_start"}
    assert ("autoreset" in info) == (mode is AutoresetMode.ENVPOOL)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_a_thousand_episodes_have_a_thousand_different_starts(impl: str) -> None:
    env = create_env("classic/cartpole", episode_length=1, parallel=20, autoreset_mode=AutoresetMode.NORMAL)
    rows = record(env, make_key(3, impl), num_steps=49)
    starts = rows["obs"][rows["episode_start"] == 1]
    assert starts.shape == (1000, 4)
    assert len(np.unique(starts, axis=0)) == 1000


@pytest.mark.parametrize("pool_size", [1, 3])
def test_fast_mode_goes_through_its_own_pool_of_starts_in_turn(pool_size: int) -> None:
    env = create_env(
        "probe/counter", episode_length=2, parallel=3, autoreset_mode=AutoresetMode.FAST, pool_size=pool_size
    )
    all_starts = starts_of(record(env, jax.random.key(4), num_steps=20))
    for starts in all_starts:
        assert len(starts) == 11
        assert len(set(starts)) == pool_size
        assert starts == [starts[index % pool_size] for index in range(11)]
    assert len({start for starts in all_starts for start in starts}) == 3 * pool_size


def assert_same_state(one: EnvState, other: EnvState) -> None:
    """Compare everything, the random keys of later episodes included."""

    def comparable(leaf: Any) -> Any:
        return jax.random.key_data(leaf) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf

    assert jax.tree.structure(one) == jax.tree.structure(other)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(comparable(a), comparable(b)), one, other)


@pytest.mark.parametrize(
    ("mode", "impl"),
    [
        (AutoresetMode.NORMAL, "threefry2x32"),
        (AutoresetMode.NORMAL, "rbg"),
        (AutoresetMode.NORMAL, "unsafe_rbg"),
        (AutoresetMode.FAST, "rbg"),
    ],
)
def test_one_key_equals_the_keys_split_from_it_and_starts_different_envs(mode: AutoresetMode, impl: str) -> None:
    env = create_env("probe/counter", episode_length=3, parallel=NUM_ENVS, autoreset_mode=mode)
    key = make_key(5, impl)
    one, many = jax.jit(lambda key: (env.reset(key), env.reset(jax.random.split(key, NUM_ENVS))))(key)
    assert_same_state(one, many)
    assert len(set(one.obs[:, 0].tolist())) == NUM_ENVS


def test_legacy_keys_start_the_same_episodes_as_typed_keys() -> None:
    env = create_env("probe/counter", episode_length=3, parallel=NUM_ENVS)
    typed = jax.jit(env.reset)(jax.random.key(6))
    legacy_key = jax.random.PRNGKey(6)
    for legacy in (legacy_key, jax.random.split(legacy_key, NUM_ENVS)):
        assert_same_state(jax.jit(env.reset)(legacy), typed)


@restarting_modes
def test_an_env_does_not_depend_on_its_neighbors(mode: AutoresetMode, staggered_counter: Env) -> None:
    env = wrap_env(staggered_counter, parallel=NUM_ENVS, autoreset_mode=mode)
    keys = jax.random.split(jax.random.key(7), 2 * NUM_ENVS)
    rows = record(env, keys[:NUM_ENVS])
    among_others = record(env, jnp.concatenate([keys[NUM_ENVS : 2 * NUM_ENVS - 1], keys[:1]]))
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(a[:, 0], b[:, -1]), rows, among_others)


def test_eager_steps_equal_compiled_steps() -> None:
    env = create_env("probe/counter", episode_length=2, parallel=2)
    rows = record(env, jax.random.key(8), num_steps=3)
    state = env.reset(jax.random.key(8))
    for time in range(4):
        jax.tree.map(lambda row, eager: np.testing.assert_array_equal(row[time], eager), rows, outputs(state))  # noqa: B023
        state = env.step(state, jnp.zeros((2,), jnp.int32))


@pytest.mark.parametrize("mode", [AutoresetMode.NORMAL, AutoresetMode.ENVPOOL], ids=lambda mode: mode.name)
def test_mapping_over_batches_of_envs_gives_what_each_batch_gives_alone(mode: AutoresetMode) -> None:
    env = wrap_env(CounterEnv(), episode_length=3, parallel=2, autoreset_mode=mode)
    keys = jax.random.split(jax.random.key(9), 3)
    mapped = jax.vmap(lambda key: play(env, key, 8))(keys)
    for index in range(3):
        jax.tree.map(
            lambda rows, row: np.testing.assert_array_equal(rows[index], row),  # noqa: B023
            mapped,
            play(env, keys[index], 8),
        )
