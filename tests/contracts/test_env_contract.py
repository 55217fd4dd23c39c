"""What every environment, every wrapper and every autoreset mode promises, whoever wrote the environment."""

import importlib.util
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gymnasium.spaces
import jax
import jax.extend
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.envs import (
    ActionRepeat,
    ActionSquashWrapper,
    AutoresetMode,
    Env,
    EnvState,
    EpisodeWrapper,
    FrameStackWrapper,
    ObsFlattenWrapper,
    RewardScaleWrapper,
    VectorWrapper,
    VmapWrapper,
    Wrapper,
    create_env,
    env_names,
    library_names,
    wrap_env,
)
from rookery.errors import InvalidInputError, MissingExtraError, ShapeError, UnknownNameError
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple, to_gymnasium
from rookery.testing.probe_envs import CounterEnv
from rookery.types import PyTreeDict

OUR_ENVS = [*env_names("classic"), *env_names("probe")]
FOREIGN_ENVS = ["brax/fast", "gymnax/CartPole-v1", "jumanji/Snake-v1"]

every_env = pytest.mark.parametrize(
    "name", [*OUR_ENVS, *(pytest.param(name, marks=pytest.mark.third_party) for name in FOREIGN_ENVS)]
)
every_mode = pytest.mark.parametrize("mode", AutoresetMode, ids=lambda mode: mode.name)


def play(env: VectorWrapper, key: Any, num_steps: int) -> tuple[EnvState, EnvState]:
    """Act at random; return the first state and all later ones, `[T, B, ...]`."""

    def step(state: EnvState, key: Any) -> tuple[EnvState, EnvState]:
        state = env.step(state, env.action_space.sample(key, (env.num_envs,)))
        return state, state

    reset_key, action_key = jax.random.split(key)
    first = env.reset(reset_key)
    return first, jax.lax.scan(step, first, jax.random.split(action_key, num_steps))[1]


@every_env
def test_every_env_keeps_the_contract_through_whole_episodes(name: str) -> None:
    env = create_env(name, episode_length=5, parallel=3, record_ori_obs=True)
    assert (env.num_envs, env.batch_shape) == (3, (3,))

    @jax.jit
    def run(key: Any) -> tuple[EnvState, EnvState, list]:
        first, states = play(env, key, 12)
        in_time = jax.vmap(jax.vmap(env.obs_space.contains))
        contained = [jax.vmap(env.obs_space.contains)(first.obs), in_time(states.obs), in_time(states.info.ori_obs)]
        return first, states, contained

    first, states, contained = run(jax.random.key(0))
    assert all(np.all(inside) for inside in contained)

    info = states.info
    for reward in jax.tree.leaves(states.reward):
        assert reward.dtype == jnp.float32
        assert reward.shape == (12, 3)
        assert np.all(np.isfinite(reward))
    for flag in (states.done, info.termination, info.truncation, info.episode_start):
        assert flag.dtype == jnp.float32
        assert flag.shape == (12, 3)
        assert set(np.unique(flag)) <= {0.0, 1.0}
    np.testing.assert_array_equal(states.done, info.termination + info.truncation)
    np.testing.assert_array_equal(info.episode_start, states.done)
    assert info.steps.dtype == jnp.int32
    assert np.asarray(states.done).sum() >= 2 * 3
    np.testing.assert_array_equal(np.asarray(states.done)[np.asarray(info.steps) == 5], 1.0)
    assert int(info.steps.max()) <= 5
    running = np.asarray(states.done) == 0
    for obs, successor in zip(jax.tree.leaves(states.obs), jax.tree.leaves(info.ori_obs), strict=True):
        np.testing.assert_array_equal(np.asarray(obs)[running], np.asarray(successor)[running])
    for flag in (first.done, first.info.termination, first.info.truncation, *jax.tree.leaves(first.reward)):
        np.testing.assert_array_equal(flag, np.zeros(3))
    np.testing.assert_array_equal(first.info.episode_start, np.ones(3))

    jax.tree.map(np.testing.assert_array_equal, states.obs, run(jax.random.key(0))[1].obs)


@every_env
def test_every_env_refuses_an_action_of_the_wrong_shape_while_tracing(name: str) -> None:
    env = create_env(name, episode_length=5, parallel=3)
    state = jax.eval_shape(env.reset, jax.random.key(0))
    action = jax.eval_shape(lambda key: env.action_space.sample(key, (3, 1)), jax.random.key(0))
    with pytest.raises(ShapeError, match=r"action.* has shape \[3, 1.*expected \[3"):
        jax.eval_shape(env.step, state, action)


class SelfLimited(Wrapper):
    """The counter env with a time limit of its own, after three steps."""

    def __init__(self) -> None:
        super().__init__(CounterEnv())

    def reset(self, key: Any) -> EnvState:
        return self.env.reset(key).replace(info=PyTreeDict(truncation=jnp.zeros(())))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        after = self.env.step(env_state, action)
        cut = (after.obs[1] >= 3).astype(jnp.float32)
        return after.replace(done=cut, info=PyTreeDict(truncation=cut))

    @property
    def max_episode_steps(self) -> int:
        return 3


def trace(env: VectorWrapper, num_steps: int, action: Any = None) -> EnvState:
    """Repeat one action; return all states with the reset as row 0."""
    action = jnp.zeros((env.num_envs,), jnp.int32) if action is None else action

    @jax.jit
    def run(key: Any) -> EnvState:
        first = env.reset(key)
        states = jax.lax.scan(lambda state, _: (env.step(state, action),) * 2, first, length=num_steps)[1]
        outputs = (first.replace(_internal=PyTreeDict()), states.replace(_internal=PyTreeDict()))
        return jax.tree.map(lambda row, rows: jnp.concatenate([row[None], rows]), *outputs)

    return run(jax.random.key(11))


@pytest.mark.parametrize(("episode_length", "num_steps"), [(None, 3), (2, 2)])
def test_the_own_time_limit_of_an_env_arrives_as_truncation(episode_length: int | None, num_steps: int) -> None:
    states = trace(wrap_env(SelfLimited(), episode_length=episode_length, parallel=1), 2 * num_steps)
    ends = [0.0] + 2 * ([0.0] * (num_steps - 1) + [1.0])
    np.testing.assert_array_equal(states.done[:, 0], ends)
    np.testing.assert_array_equal(states.info.truncation[:, 0], ends)
    np.testing.assert_array_equal(states.info.termination[:, 0], np.zeros(len(ends)))


@pytest.mark.parametrize("mode", [AutoresetMode.NORMAL, AutoresetMode.ENVPOOL], ids=lambda mode: mode.name)
def test_action_repeat_sums_rewards_stops_at_the_end_and_is_not_frozen_afterwards(mode: AutoresetMode) -> None:
    env = wrap_env(
        ActionRepeat(CounterEnv(terminates_after=5), 2), parallel=2, autoreset_mode=mode, record_ori_obs=True
    )
    states = trace(env, 6)
    dead_step = [0] if mode is AutoresetMode.ENVPOOL else []

    def two_episodes(first: int, second: int, third: int) -> np.ndarray:
        episode = [first, second, third, *dead_step]
        return np.array([[value, value] for value in [0, *episode, *episode][:7]])

    np.testing.assert_array_equal(states.reward, two_episodes(3, 7, 5))
    np.testing.assert_array_equal(states.info.steps, two_episodes(1, 2, 3))
    np.testing.assert_array_equal(states.info.ori_obs[..., 1], two_episodes(2, 4, 5))
    np.testing.assert_array_equal(states.done, states.info.termination)
    np.testing.assert_array_equal(states.info.episode_return[3], [15, 15])


def test_action_repeat_keeps_a_time_limit_that_strikes_between_two_repeats() -> None:
    states = trace(wrap_env(ActionRepeat(SelfLimited(), 2), parallel=1), 4)
    np.testing.assert_array_equal(states.reward[:, 0], [0, 3, 3, 3, 3])
    np.testing.assert_array_equal(states.info.truncation[:, 0], [0, 0, 1, 0, 1])
    np.testing.assert_array_equal(states.info.termination[:, 0], np.zeros(5))


@pytest.mark.parametrize(("axis", "mode"), [("last", AutoresetMode.NORMAL), ("new", AutoresetMode.ENVPOOL)])
def test_frame_stack_starts_every_episode_with_its_own_first_frame(axis: str, mode: AutoresetMode) -> None:
    stacked = FrameStackWrapper(CounterEnv(terminates_after=4), 3, axis=axis)
    env = wrap_env(stacked, parallel=2, autoreset_mode=mode, record_ori_obs=True)
    assert env.obs_space.shape == ((6,) if axis == "last" else (3, 2))
    states = trace(env, 7)
    frames = np.asarray(states.obs).reshape(8, 2, 3, 2)
    successors = np.asarray(states.info.ori_obs).reshape(8, 2, 3, 2)
    episode = [[0, 0, 0], [0, 0, 1], [0, 1, 2], [1, 2, 3]]
    ending = [[2, 3, 4]]
    shown = episode + episode if mode is AutoresetMode.NORMAL else episode + ending + episode[:3]
    for env_index in range(2):
        np.testing.assert_array_equal(frames[:, env_index, :, 1], shown)
        np.testing.assert_array_equal(successors[4, env_index, :, 1], [2, 3, 4])
        border = 4 if mode is AutoresetMode.NORMAL else 5
        starts = frames[:, env_index, :, 0]
        assert len(np.unique(starts[:border])) == len(np.unique(starts[border:])) == 1
        assert starts[0, 0] != starts[border, 0]
        assert len(np.unique(successors[4, env_index, :, 0])) == 1
    assert bool(jnp.all(jax.vmap(env.obs_space.contains)(states.obs[0])))


def test_frame_stack_stacks_every_part_of_a_dict_observation() -> None:
    env = wrap_env(FrameStackWrapper(CounterEnv(dict_obs=True), 2, axis="new"), episode_length=2, parallel=1)
    states = trace(env, 3)
    np.testing.assert_array_equal(states.obs["count"][:, 0], [[0, 0], [0, 1], [0, 0], [0, 1]])
    assert bool(jnp.all(jax.vmap(env.obs_space.contains)(jax.tree.map(lambda leaf: leaf[1], states.obs))))


class Echo(Env):
    """Shows the action it was given."""

    def __init__(self, action_space: Space) -> None:
        self._action_space = action_space

    @property
    def obs_space(self) -> Space:
        return self._action_space

    @property
    def action_space(self) -> Space:
        return self._action_space

    def reset(self, key: Any) -> EnvState:
        return self._state(jnp.zeros(self._action_space.shape))

    def step(self, env_state: EnvState, action: Any) -> EnvState:
        self._action_space.check(action, "action")
        return self._state(action)

    def _state(self, action: Any) -> EnvState:
        return EnvState(env_state=(), obs=action, reward=jnp.zeros(()), done=jnp.zeros(()))


def test_action_squash_maps_the_unit_box_onto_the_bounds() -> None:
    low, high = np.array([-2.0, 0.0, 5.0], np.float32), np.array([4.0, 10.0, 5.0], np.float32)
    env = ActionSquashWrapper(Echo(Box(low, high)))
    assert env.action_space == Box(-1.0, 1.0, (3,))
    state = env.reset(jax.random.key(0))
    for action, expected in [(-1.0, low), (0.0, (low + high) / 2), (1.0, high), (0.5, low + 0.75 * (high - low))]:
        np.testing.assert_allclose(env.step(state, jnp.full((3,), action)).obs, expected, rtol=1e-6)


@pytest.mark.parametrize("action_space", [Discrete(3), Box(-1.0, np.inf, (2,))], ids=str)
def test_action_squash_refuses_a_space_without_bounds_to_map_onto(action_space: Space) -> None:
    with pytest.raises(InvalidInputError, match=type(action_space).__name__):
        ActionSquashWrapper(Echo(action_space))


def test_obs_flatten_agrees_with_gymnasium() -> None:
    space = Dict(
        zeta=Discrete(3, start=-1),
        alpha=Tuple([Box(-1.0, 1.0, (2, 2)), MultiDiscrete([2, 3])]),
        middle=Dict(bits=MultiBinary(2), pixels=Box(0, 255, (2,), np.uint8)),
    )

    class Still(Echo):
        def reset(self, key: Any) -> EnvState:
            return self._state(space.sample(key))

    env = ObsFlattenWrapper(Still(space))
    for seed in range(3):
        key = jax.random.key(seed)
        sample = jax.tree.map(np.asarray, space.sample(key))
        plain = {"zeta": sample.zeta, "alpha": sample.alpha, "middle": dict(sample.middle)}
        expected = gymnasium.spaces.flatten(sorted_names_first(space), plain)
        flat = env.reset(key).obs
        assert flat.dtype == jnp.float32
        np.testing.assert_array_equal(flat, expected)
        assert env.obs_space.contains(flat) is True


def sorted_names_first(space: Dict) -> gymnasium.spaces.Dict:
    """The Gymnasium space with its names in sorted order, which is the order it is flattened in."""
    return gymnasium.spaces.Dict([(name, to_gymnasium(space[name])) for name in sorted(space)])


def test_reward_scale_scales_the_reward_and_the_return() -> None:
    states = trace(wrap_env(RewardScaleWrapper(CounterEnv(), 0.5), episode_length=3, parallel=1, discount=0.9), 4)
    np.testing.assert_allclose(states.reward[:, 0], [0, 0.5, 1.0, 1.5, 0.5])
    np.testing.assert_allclose(states.info.episode_return[3, 0], 0.5 * (1 + 0.9 * 2 + 0.81 * 3), rtol=1e-6)


def test_wrappers_built_by_hand_equal_create_env() -> None:
    by_hand = VmapWrapper(EpisodeWrapper(CounterEnv(terminates_after=2), 5, record_ori_obs=True, discount=0.9), 3)
    by_name = create_env(
        "probe/counter",
        episode_length=5,
        parallel=3,
        autoreset_mode=AutoresetMode.DISABLED,
        discount=0.9,
        record_ori_obs=True,
        terminates_after=2,
    )
    jax.tree.map(np.testing.assert_array_equal, trace(by_hand, 4), trace(by_name, 4))


@pytest.mark.parametrize(
    "wrap",
    [
        lambda env: RewardScaleWrapper(env, 0.5),
        lambda env: FrameStackWrapper(env, 2),
        ObsFlattenWrapper,
    ],
    ids=["RewardScaleWrapper", "FrameStackWrapper", "ObsFlattenWrapper"],
)
def test_a_wrapper_outside_the_episode_wrapper_is_refused(wrap: Callable) -> None:
    # There `steps`, `episode_return` and `ori_obs` would be those of another env than the agent sees.
    with pytest.raises(InvalidInputError, match="EpisodeWrapper"):
        wrap(EpisodeWrapper(CounterEnv(), 5))


class ExpensiveReset(Wrapper):
    """The counter env whose reset leaves a recognisable primitive in the program."""

    def __init__(self) -> None:
        super().__init__(CounterEnv())

    def reset(self, key: Any) -> EnvState:
        state = self.env.reset(key)
        return state.replace(obs=jax.lax.digamma(1.0 + state.obs))


def unconditional_primitives(jaxpr: jax.extend.core.Jaxpr) -> Iterator[str]:
    """The names of all primitives of a program outside the branches of its conditionals."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        if equation.primitive.name != "cond":
            for value in jax.tree.leaves(list(equation.params.values()), is_leaf=is_jaxpr):
                if is_jaxpr(value):
                    yield from unconditional_primitives(getattr(value, "jaxpr", value))


def is_jaxpr(value: Any) -> bool:
    return isinstance(value, (jax.extend.core.Jaxpr, jax.extend.core.ClosedJaxpr))


@every_mode
@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "under vmap"])
def test_the_program_of_a_step_resets_and_draws_in_a_conditional_branch_only(mode: AutoresetMode, mapped: bool) -> None:
    env = wrap_env(ExpensiveReset(), episode_length=4, parallel=3, autoreset_mode=mode)
    reset, step = (jax.vmap(env.reset), jax.vmap(env.step)) if mapped else (env.reset, env.step)
    key = jax.random.split(jax.random.key(0), 2) if mapped else jax.random.key(0)
    state = jax.eval_shape(reset, key)
    action = jax.ShapeDtypeStruct((2, 3) if mapped else (3,), jnp.int32)

    assert "digamma" in set(unconditional_primitives(jax.make_jaxpr(reset)(key).jaxpr))
    program = jax.make_jaxpr(step)(state, action)
    assert not set(unconditional_primitives(program.jaxpr)) & {
        "digamma",
        "random_bits",
        "random_split",
        "random_fold_in",
        "threefry2x32",
        "rng_bit_generator",
    }
    assert ("digamma" in str(program)) == (mode in (AutoresetMode.NORMAL, AutoresetMode.ENVPOOL))


@every_mode
@pytest.mark.parametrize("mapped", [False, True], ids=["plain", "under vmap"])
def test_no_reset_is_computed_while_nobody_is_done(mode: AutoresetMode, mapped: bool, watch: Callable) -> None:
    watched = watch(CounterEnv())
    env = wrap_env(watched, episode_length=3, parallel=2, autoreset_mode=mode)
    reset, step = (jax.vmap(env.reset), jax.vmap(env.step)) if mapped else (env.reset, env.step)
    state = jax.jit(reset)(jax.random.split(jax.random.key(0), 2) if mapped else jax.random.key(0))
    before = watched.resets.num_calls
    assert before > 0

    action = jnp.zeros((2, 2) if mapped else (2,), jnp.int32)
    step = jax.jit(step)
    steps_with_reset = set()
    for time in range(1, 8):
        state = step(state, action)
        if watched.resets.num_calls > before:
            steps_with_reset.add(time)
        before = watched.resets.num_calls
    # Episodes end at these steps; in `ENVPOOL` mode the dead step follows.
    allowed = {AutoresetMode.NORMAL: {3, 6}, AutoresetMode.ENVPOOL: {3, 4, 7}}.get(mode, set())
    assert steps_with_reset <= allowed
    assert bool(steps_with_reset) == bool(allowed)


@pytest.mark.parametrize(
    ("name", "kwargs", "error", "message"),
    [
        ("classic/cartpol", {}, UnknownNameError, "'classic/cartpol'.*Did you mean 'classic/cartpole'"),
        ("clasic/cartpole", {}, UnknownNameError, "'clasic'.*Did you mean 'classic'"),
        ("CartPole", {}, UnknownNameError, "'CartPole'.*Did you mean 'classic/cartpole'"),
        ("probe/countr", {}, UnknownNameError, "'probe/countr'.*Did you mean 'probe/counter'"),
        ("probe/counter", {"parallel": 0}, InvalidInputError, "parallel=0.*at least 1"),
        ("probe/counter", {"parallel": -3}, InvalidInputError, "parallel=-3.*at least 1"),
        ("probe/counter", {"parallel": 2.0}, InvalidInputError, "parallel=2.0.*integer"),
        ("probe/counter", {"episode_length": 0}, InvalidInputError, "episode_length=0.*at least 1"),
        ("probe/counter", {"discount": 2.0}, InvalidInputError, "discount=2.0.*between 0 and 1"),
        ("probe/counter", {"autoreset_mode": "normal"}, InvalidInputError, "'normal'.*AutoresetMode.NORMAL"),
        (
            "probe/counter",
            {"autoreset_mode": AutoresetMode.FAST, "pool_size": 0},
            InvalidInputError,
            "pool_size=0.*at least 1",
        ),
        ("probe/counter", {"terminats_after": 3}, InvalidInputError, "terminats_after"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_built(
    name: str, kwargs: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_env(name, **kwargs)


@pytest.mark.parametrize("library", ["brax", "gymnax", "jumanji"])
def test_a_missing_library_is_an_error_with_the_command_that_installs_it(
    library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda name, package=None: None if name.split(".")[0] == library else find_spec(name, package),
    )
    with pytest.raises(MissingExtraError, match=rf"{library} is not installed.*pip install 'rookery\[{library}\]'"):
        create_env(f"{library}/anything")


@pytest.mark.parametrize(
    ("key", "error", "message"),
    [
        (3, InvalidInputError, r"got 3.*jax\.random\.key\(seed\)"),
        (jnp.zeros((3,)), InvalidInputError, r"float32\[3\].*jax\.random\.key\(seed\)"),
        (jax.random.split(jax.random.key(0), 2), ShapeError, r"one key or 3.*\[2\]"),
    ],
    ids=["number", "array", "too few keys"],
)
def test_reset_refuses_what_is_no_key_or_the_wrong_number_of_keys(
    key: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        create_env("probe/counter", parallel=3).reset(key)


@pytest.mark.parametrize(
    ("action", "message"),
    [
        (jnp.zeros((3, 1), jnp.int32), r"shape \[3, 1\]; expected \[3\]"),
        (jnp.zeros((2,), jnp.int32), r"shape \[2\]; expected \[3\]"),
        (jnp.zeros((), jnp.int32), r"shape \[\]; expected \[3\]"),
        (jnp.zeros((3,)), "dtype float32; expected int32"),
        (None, r"NoneType; expected an array int32\[3\]"),
    ],
    ids=["extra axis", "too few", "scalar", "dtype", "none"],
)
def test_an_action_that_does_not_fit_is_refused_while_tracing(action: Any, message: str) -> None:
    env = create_env("probe/counter", parallel=3)
    with pytest.raises(ShapeError, match=f"action.*{message}"):
        jax.eval_shape(env.step, jax.eval_shape(env.reset, jax.random.key(0)), action)


def test_a_third_party_adds_a_library_by_an_entry_point(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "sandbox_envs.py").write_text(
        "from rookery.testing.probe_envs import CounterEnv\n"
        "def names(): return ['sandbox']\n"
        "def make(name, episode_length=None, **kwargs): return CounterEnv(**kwargs)\n"
    )
    metadata = tmp_path / "sandbox_envs-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: sandbox-envs\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[rookery.envs]\nplayground = sandbox_envs\n")
    monkeypatch.syspath_prepend(str(tmp_path))

    assert "playground" in library_names()
    assert env_names("playground") == ["playground/sandbox"]
    env = create_env("playground/sandbox", parallel=2, terminates_after=1)
    np.testing.assert_array_equal(trace(env, 1).done, [[0, 0], [1, 1]])
