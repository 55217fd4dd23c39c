from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

pytest.importorskip("jumanji")

import jumanji
import jumanji.environments
import jumanji.wrappers
from jumanji.environments.routing.sokoban import env as sokoban
from jumanji.environments.routing.sokoban.generator import SimpleSolveGenerator

from rookery.envs.jumanji import MULTI_AGENT_NAMES, JumanjiAdapter, make, names
from rookery.errors import InvalidInputError, ShapeError, UnknownNameError
from rookery.spaces import Box, Dict, Discrete, MultiDiscrete, Space
from rookery.types import PyTreeDict

NEEDS_DOWNLOAD = "Sokoban-v0"
OFFLINE_NAMES = [name for name in names() if name != NEEDS_DOWNLOAD]


@pytest.fixture
def library_promotion() -> Iterator[None]:
    """For tests that call jumanji itself, which is not written for strict promotion."""
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        yield


def types_of(tree: Any) -> list[tuple]:
    leaves, structure = jax.tree.flatten(tree)
    return [structure, *((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)) for leaf in leaves)]


def dtypes_of(space: Space) -> Any:
    return jax.tree.map(lambda leaf: leaf.dtype, jax.eval_shape(space.sample, jax.random.key(0)))


def flags(env: JumanjiAdapter, key: jax.Array, actions: jax.Array) -> tuple[np.ndarray, np.ndarray]:
    """Return `done` and `truncation` of each step."""

    def advance(state: Any, action: jax.Array) -> tuple[Any, tuple]:
        state = env.step(state, action)
        return state, (state.done, state.info.truncation)

    return jax.jit(lambda key: jax.lax.scan(advance, env.reset(key), actions)[1])(key)


@pytest.mark.parametrize("name", OFFLINE_NAMES)
def test_every_env_keeps_its_tree_its_dtypes_and_its_spaces(name: str) -> None:
    env = make(name)
    step = jax.jit(env.step)
    state = first = jax.jit(env.reset)(jax.random.key(0))
    for action_key in jax.random.split(jax.random.key(1), 3):
        assert env.obs_space.contains(state.obs)
        assert jax.tree.map(lambda leaf: leaf.dtype, state.obs) == dtypes_of(env.obs_space)
        state = step(state, env.action_space.sample(action_key))
    assert types_of(state) == types_of(first)
    assert not any(getattr(leaf, "weak_type", False) for leaf in jax.tree.leaves(state))
    assert state.reward.dtype == state.done.dtype == state.info.truncation.dtype == jnp.float32
    assert state.reward.shape == state.done.shape == ()


@pytest.mark.parametrize("name", ["Snake-v1", "TSP-v1", "Game2048-v1", "Minesweeper-v0"])
@pytest.mark.usefixtures("library_promotion")
def test_a_trajectory_equals_that_of_the_library(name: str) -> None:
    env, library_env = make(name), jumanji.make(name)
    library_step = jax.jit(library_env.step)
    our_step = jax.jit(env.step)
    ours = env.reset(jax.random.key(0))
    library_state, expected = library_env.reset(jax.random.key(0))
    num_ends = 0
    for action_key in jax.random.split(jax.random.key(1), 12):
        action = env.action_space.sample(action_key)
        ours = our_step(ours, action)
        library_state, expected = library_step(library_state, action)
        for entry in env.obs_space:
            np.testing.assert_array_equal(ours.obs[entry], getattr(expected.observation, entry))
        np.testing.assert_allclose(ours.reward, expected.reward, rtol=1e-6)
        assert ours.done == float(expected.last())
        num_ends += int(ours.done)
    assert name == "Game2048-v1" or num_ends > 0, "the episode must end in this test"


def test_many_copies_run_under_jit_vmap_and_scan() -> None:
    env = make("Game2048-v1")

    @jax.jit
    def run(keys: jax.Array) -> Any:
        def advance(states: Any, action: jax.Array) -> tuple[Any, Any]:
            states = jax.vmap(env.step)(states, jnp.full(16, action))
            return states, states.obs

        return jax.lax.scan(advance, jax.vmap(env.reset)(keys), jnp.arange(8) % 4)[1]

    obs = run(jax.random.split(jax.random.key(0), 16))
    assert obs.board.shape == (8, 16, 4, 4)
    assert obs.action_mask.shape == (8, 16, 4)
    assert len(np.unique(np.asarray(obs.board[-1]), axis=0)) == 16


def test_the_time_limit_truncates_although_the_library_says_termination() -> None:
    env = make("Maze-v0", episode_length=6)
    assert env.max_episode_steps == 6
    done, truncation = flags(env, jax.random.key(0), jnp.zeros(6, jnp.int32))
    np.testing.assert_array_equal(done, [0, 0, 0, 0, 0, 1])
    np.testing.assert_array_equal(truncation, [0, 0, 0, 0, 0, 1])

    library_env = jumanji.make("Maze-v0", time_limit=1)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        _, timestep = library_env.step(library_env.reset(jax.random.key(0))[0], jnp.asarray(0))
    assert timestep.last()
    assert timestep.discount == 0.0


def test_a_collision_terminates_and_is_no_truncation_even_on_the_last_step() -> None:
    upwards = jnp.zeros(12, jnp.int32)
    done, truncation = flags(make("Snake-v1"), jax.random.key(0), upwards)
    num_steps = int(np.argmax(done)) + 1
    assert done.max() == 1.0
    assert truncation.max() == 0.0

    done, truncation = flags(make("Snake-v1", episode_length=num_steps), jax.random.key(0), upwards[:num_steps])
    np.testing.assert_array_equal(done, [0.0] * (num_steps - 1) + [1.0])
    assert truncation.max() == 0.0


def test_the_last_observation_of_snake_at_its_time_limit_is_in_the_space() -> None:
    env = JumanjiAdapter(jumanji.environments.Snake(num_rows=6, num_cols=6, time_limit=2))
    state = env.reset(jax.random.key(0))
    for _ in range(2):
        state = env.step(state, jnp.argmax(state.obs.action_mask))
    assert state.obs.step_count == 2
    assert state.info.truncation == 1.0
    assert env.obs_space.contains(state.obs)


def test_an_env_without_time_limit_never_truncates() -> None:
    env = make("Game2048-v1")
    assert env.max_episode_steps is None
    actions = jax.vmap(env.action_space.sample)(jax.random.split(jax.random.key(1), 400))
    done, truncation = flags(env, jax.random.key(0), actions)
    assert done.max() == 1.0
    assert truncation.max() == 0.0


def test_an_env_that_the_library_truncates_itself_is_read_the_same_way() -> None:
    library_env = jumanji.environments.LevelBasedForaging(time_limit=3)
    with jax.numpy_dtype_promotion("standard"), jax.numpy_rank_promotion("allow"):
        env = JumanjiAdapter(jumanji.wrappers.MultiToSingleWrapper(library_env))
    assert env.max_episode_steps == 3
    done, truncation = flags(env, jax.random.key(0), jnp.zeros((3, 2), jnp.int32))
    np.testing.assert_array_equal(done, [0, 0, 1])
    np.testing.assert_array_equal(truncation, [0, 0, 1])


def test_the_time_limit_of_a_wrapped_env_truncates() -> None:
    env = JumanjiAdapter(jumanji.wrappers.Wrapper(jumanji.environments.Maze(time_limit=2)))
    done, truncation = flags(env, jax.random.key(0), jnp.zeros(2, jnp.int32))
    np.testing.assert_array_equal(done, [0, 1])
    np.testing.assert_array_equal(truncation, [0, 1])


def test_observations_are_dicts_and_specs_become_the_spaces_of_their_kind() -> None:
    env = make("Maze-v0")
    position = Dict({"row": Box(0, 9, (), np.int32), "col": Box(0, 9, (), np.int32)})
    assert env.obs_space == Dict(
        {
            "agent_position": position,
            "target_position": position,
            "walls": Box(False, True, (10, 10), np.bool_),
            "step_count": Box(-np.inf, np.inf, (), np.int32),
            "action_mask": Box(False, True, (4,), np.bool_),
        }
    )
    assert env.action_space == Discrete(4)
    assert env.reset(jax.random.key(0)).obs.agent_position.row.shape == ()
    assert make("TSP-v1").obs_space["position"] == Discrete(21, start=-1)
    assert make("Tetris-v0").action_space == MultiDiscrete([4, 10])


def test_each_vehicle_chooses_among_the_nodes_that_its_mask_has() -> None:
    env = make("MultiCVRP-v0")
    num_vehicles, num_nodes = env.obs_space["action_mask"].shape
    assert env.action_space == MultiDiscrete([num_nodes] * num_vehicles, dtype=np.int16)


def test_what_the_library_calls_extras_is_in_the_metrics_in_float32() -> None:
    env = make("Cleaner-v0")
    state = env.reset(jax.random.key(0))
    assert set(state.info.metrics) == {"num_dirty_tiles", "ratio_dirty_tiles"}
    assert state.info.metrics.num_dirty_tiles.dtype == jnp.float32
    assert state.info.metrics.num_dirty_tiles > 10.0


def test_a_step_keeps_what_wrappers_keep_in_the_state() -> None:
    env = make("Maze-v0")
    first = env.reset(jax.random.key(0))
    noted = first.replace(info=first.info.replace(steps=jnp.asarray(7)), _internal=PyTreeDict(counter=jnp.asarray(8)))
    stepped = env.step(noted, jnp.asarray(0))
    assert types_of(stepped) == types_of(noted)
    assert stepped.info.steps == 7
    assert stepped._internal.counter == 8


def test_typed_and_legacy_keys_start_the_same_episode() -> None:
    env = make("Snake-v1")
    typed, legacy = env.reset(jax.random.key(3)), env.reset(jax.random.PRNGKey(3))
    np.testing.assert_array_equal(typed.obs.grid, legacy.obs.grid)
    assert jax.tree.structure(typed) == jax.tree.structure(legacy)


def test_actions_of_another_integer_width_are_taken_as_the_same() -> None:
    env = make("Maze-v0")
    first = env.reset(jax.random.key(0))
    assert types_of(env.step(first, np.int8(1))) == types_of(env.step(first, jnp.asarray(1)))


@pytest.mark.parametrize("name", MULTI_AGENT_NAMES)
def test_an_env_with_one_reward_per_agent_is_refused_with_the_way_to_add_them_up(name: str) -> None:
    assert name not in names()
    with pytest.raises(InvalidInputError, match=r"one per agent; expected scalars\..*MultiToSingleWrapper"):
        make(name)


def test_arguments_go_to_the_library() -> None:
    env = make("Snake-v1", num_rows=5, num_cols=7, episode_length=9)
    assert env.obs_space["grid"].shape == (5, 7, 5)
    assert env.max_episode_steps == 9


@pytest.mark.parametrize("argument", ["num_row", "time_limit"])
def test_an_unknown_argument_is_refused_with_those_that_exist(argument: str) -> None:
    with pytest.raises(InvalidInputError, match=f"takes no argument '{argument}': it takes episode_length, .*num_rows"):
        make("Snake-v1", **{argument: 5})


def test_an_unknown_name_offers_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"'jumanji/Snake'\. Did you mean 'jumanji/Snake-v1'"):
        make("Snake")


def test_an_action_of_another_shape_is_refused() -> None:
    env = make("Snake-v1")
    with pytest.raises(ShapeError, match="action has shape"):
        env.step(env.reset(jax.random.key(0)), jnp.zeros(2, jnp.int32))


def test_an_env_without_its_data_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_internet(*args: Any, **kwargs: Any) -> None:
        raise FileNotFoundError("not in the local cache")

    monkeypatch.setattr(sokoban, "HuggingFaceDeepMindGenerator", no_internet)
    with pytest.raises(InvalidInputError, match=r"jumanji/Sokoban-v0 could not load its data .*internet.*generator="):
        make(NEEDS_DOWNLOAD)


def test_solving_sokoban_on_the_last_step_terminates_and_another_last_step_truncates() -> None:
    env = make(NEEDS_DOWNLOAD, generator=SimpleSolveGenerator(), episode_length=10)
    up, right, down = 0, 1, 2
    solution = [up, down, right] * 3 + [up]
    for last_action, expected_truncation in ((up, 0.0), (down, 1.0)):
        actions = jnp.asarray([*solution[:-1], last_action])
        done, truncation = flags(env, jax.random.key(0), actions)
        np.testing.assert_array_equal(done, [0.0] * 9 + [1.0])
        np.testing.assert_array_equal(truncation, [0.0] * 9 + [expected_truncation])


@pytest.mark.parametrize("name", ["Snake-v1", "Game2048-v1"])
def test_states_are_drawn_without_a_display(name: str) -> None:
    pytest.importorskip("matplotlib").use("agg")
    env = make(name)
    first = env.reset(jax.random.key(0))
    frames = [env.render(first), env.render(env.step(first, jnp.argmax(first.obs.action_mask)))]
    assert all(frame.dtype == np.uint8 and frame.ndim == 3 and frame.shape[2] == 3 for frame in frames)
    assert (frames[0] != frames[1]).any()
    env.jumanji_env.close()
