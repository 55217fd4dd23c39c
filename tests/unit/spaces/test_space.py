"""Spaces hold what they draw, draw uniformly, and are the same sets as Gymnasium's."""

from typing import Any

import gymnasium.spaces as gym_spaces
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from rookery.errors import InvalidInputError, ShapeError
from rookery.spaces import (
    Box,
    Dict,
    Discrete,
    MultiBinary,
    MultiDiscrete,
    Space,
    Tuple,
    alike,
    from_gymnasium,
    to_gymnasium,
)
from rookery.types import PyTreeDict

GYMNASIUM_SPACES = {
    "unit box": gym_spaces.Box(-1.0, 1.0, (3,)),
    "box of no axes": gym_spaces.Box(0.0, 5.0, ()),
    "empty box": gym_spaces.Box(0.0, 1.0, (0,)),
    "box with different sides": gym_spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([2.0, 9.0], np.float32)),
    "unbounded box": gym_spaces.Box(-np.inf, np.inf, (2, 2)),
    "half bounded box": gym_spaces.Box(
        np.array([-np.inf, 1.0, 0.0], np.float32), np.array([-1.0, np.inf, 1.0], np.float32)
    ),
    "widest box": gym_spaces.Box(np.finfo(np.float32).min, np.finfo(np.float32).max, (2,)),
    "float64 box": gym_spaces.Box(-0.1, 0.1, (2,), np.float64),
    "float16 box": gym_spaces.Box(-1, 1, (2,), np.float16),
    "image": gym_spaces.Box(0, 255, (4, 4, 3), np.uint8),
    "int8 box": gym_spaces.Box(-128, 127, (2,), np.int8),
    "narrow int8 box": gym_spaces.Box(-128, -3, (2,), np.int8),
    "int32 box": gym_spaces.Box(-5, 5, (2,), np.int32),
    "full int32 box": gym_spaces.Box(np.iinfo(np.int32).min, np.iinfo(np.int32).max, (2,), np.int32),
    "int64 box": gym_spaces.Box(-5, 1000, (2,), np.int64),
    "unsigned box": gym_spaces.Box(0, 2**32 - 1, (2,), np.uint32),
    "bool box": gym_spaces.Box(0, 1, (3,), np.bool_),
    "box of one point": gym_spaces.Box(2.0, 2.0, (2,)),
    "discrete": gym_spaces.Discrete(7),
    "discrete of one": gym_spaces.Discrete(1),
    "discrete from -3": gym_spaces.Discrete(6, start=-3),
    "small discrete": gym_spaces.Discrete(5, dtype=np.int32),
    "discrete of bytes": gym_spaces.Discrete(254, start=1, dtype=np.uint8),
    "multi discrete": gym_spaces.MultiDiscrete([3, 2, 5]),
    "multi discrete table": gym_spaces.MultiDiscrete(np.array([[3, 2], [4, 5]])),
    "multi discrete from 1": gym_spaces.MultiDiscrete([3, 2], start=[1, -4]),
    "multi discrete up to the limit": gym_spaces.MultiDiscrete([127, 2], dtype=np.int8, start=[1, 0]),
    "multi binary": gym_spaces.MultiBinary(4),
    "multi binary table": gym_spaces.MultiBinary([2, 3]),
    "dict": gym_spaces.Dict(b=gym_spaces.Discrete(3), a=gym_spaces.Box(-1, 1, (2,))),
    "tuple": gym_spaces.Tuple((gym_spaces.Discrete(3), gym_spaces.MultiBinary(2))),
    "nested": gym_spaces.Dict(
        pair=gym_spaces.Tuple((gym_spaces.Discrete(3), gym_spaces.Dict(x=gym_spaces.Box(0, 1, ())))),
        mask=gym_spaces.Box(0, 1, (4,), np.int8),
    ),
}

every_space = pytest.mark.parametrize("gym_space", GYMNASIUM_SPACES.values(), ids=GYMNASIUM_SPACES.keys())


def as_gymnasium_sample(gym_space: gym_spaces.Space, sample: Any) -> Any:
    """Give a sample the containers and the exact dtypes that Gymnasium insists on."""
    if isinstance(gym_space, gym_spaces.Dict):
        return {name: as_gymnasium_sample(space, sample[name]) for name, space in gym_space.items()}
    if isinstance(gym_space, gym_spaces.Tuple):
        return tuple(map(as_gymnasium_sample, gym_space, sample))
    return np.asarray(sample).astype(gym_space.dtype)


def draw(space: Space, num_samples: int) -> Any:
    return jax.jit(lambda key: space.sample(key, (num_samples,)))(jax.random.key(2))


@every_space
def test_a_gymnasium_space_comes_back_equal(gym_space: gym_spaces.Space) -> None:
    space = from_gymnasium(gym_space)
    returned = to_gymnasium(space)
    assert returned == gym_space
    assert returned.dtype == gym_space.dtype
    assert from_gymnasium(returned) == space
    assert hash(from_gymnasium(returned)) == hash(space)


@every_space
def test_our_samples_are_in_both_spaces(gym_space: gym_spaces.Space) -> None:
    space = from_gymnasium(gym_space)
    samples = draw(space, 16)
    assert bool(jnp.all(jax.jit(jax.vmap(space.contains))(samples)))
    for index in range(16):
        sample = jax.tree.map(lambda leaf: np.asarray(leaf)[index], samples)  # noqa: B023
        assert space.contains(sample) is True
        assert gym_space.contains(as_gymnasium_sample(gym_space, sample))


def test_the_last_value_of_a_dtype_is_contained() -> None:
    # Gymnasium's own check overflows here, so this case cannot be compared with it.
    space = Discrete(255, start=1, dtype=np.uint8)
    for value, inside in ((0, False), (1, True), (255, True)):
        assert space.contains(np.uint8(value)) is inside
        assert space.contains(jnp.uint8(value)) is inside
        assert bool(jax.jit(space.contains)(jnp.uint8(value))) is inside


@every_space
def test_gymnasium_samples_are_in_our_space(gym_space: gym_spaces.Space) -> None:
    space = from_gymnasium(gym_space)
    gym_space.seed(0)
    for _ in range(8):
        assert space.contains(gym_space.sample()) is True


@every_space
def test_batch_shape_comes_before_the_shape_of_the_space(gym_space: gym_spaces.Space) -> None:
    space = from_gymnasium(gym_space)

    def draw_and_check(key: jax.Array, batch_shape: tuple) -> Any:
        sample = space.sample(key, batch_shape)
        assert space.batch_shape_of(sample) == batch_shape
        space.check(sample, "sample", batch_shape)
        with pytest.raises(ShapeError, match="sample"):
            space.check(sample, "sample", (*batch_shape, 2))
        return sample

    single = jax.eval_shape(lambda key: draw_and_check(key, ()), jax.random.key(1))
    batched = jax.eval_shape(lambda key: draw_and_check(key, (2, 3)), jax.random.key(1))
    assert jax.tree.map(lambda leaf: ((2, 3, *leaf.shape), leaf.dtype), single) == jax.tree.map(
        lambda leaf: (leaf.shape, leaf.dtype), batched
    )


@pytest.mark.parametrize("name", ["box with different sides", "multi discrete", "nested"])
def test_an_equal_space_is_the_same_static_argument(name: str) -> None:
    num_traces = 0

    def traced_draw(key: jax.Array, space: Space) -> Any:
        nonlocal num_traces
        num_traces += 1
        return space.sample(key)

    draw_jitted = jax.jit(traced_draw, static_argnames="space")
    first = draw_jitted(jax.random.key(0), space=from_gymnasium(GYMNASIUM_SPACES[name]))
    second = draw_jitted(jax.random.key(0), space=from_gymnasium(GYMNASIUM_SPACES[name]))
    assert num_traces == 1
    jax.tree.map(np.testing.assert_array_equal, first, second)
    jax.tree.map(np.testing.assert_array_equal, first, from_gymnasium(GYMNASIUM_SPACES[name]).sample(jax.random.key(0)))


def test_all_these_spaces_are_different_from_each_other() -> None:
    spaces = [from_gymnasium(gym_space) for gym_space in GYMNASIUM_SPACES.values()]
    assert len(set(spaces)) == len(spaces)
    assert all((one == other) == (one is other) for one in spaces for other in spaces)


@pytest.mark.parametrize(
    ("space", "values"),
    [
        (Discrete(7), range(7)),
        (Discrete(8), range(8)),
        (Discrete(6, start=-3), range(-3, 3)),
        (Discrete(255, start=1, dtype=np.uint8), range(1, 256)),
        (MultiDiscrete([5, 5], start=[2, 2]), range(2, 7)),
        (MultiDiscrete([127], start=[1], dtype=np.int8), range(1, 128)),
        (MultiBinary(3), range(2)),
        (Box(0, 255, (2,), np.uint8), range(256)),
        (Box(-128, 127, (2,), np.int8), range(-128, 128)),
        (Box(-128, -30, (2,), np.int8), range(-128, -29)),
        (Box(30, 127, (2,), np.int8), range(30, 128)),
        (Box(-4, 5, (), np.int64), range(-4, 6)),
        (Box(False, True, (2,), np.bool_), range(2)),
    ],
    ids=str,
)
def test_every_integer_is_drawn_equally_often(space: Space, values: range) -> None:
    samples = np.asarray(draw(space, 20_000)).astype(np.int64).ravel()
    counts = np.array([np.sum(samples == value) for value in values])
    assert counts.sum() == samples.size
    assert stats.chisquare(counts).pvalue > 1e-4


def test_the_entries_of_a_multi_discrete_are_drawn_independently() -> None:
    samples = np.asarray(draw(MultiDiscrete([3, 4]), 20_000))
    table = np.array([[np.sum((samples[:, 0] == i) & (samples[:, 1] == j)) for j in range(4)] for i in range(3)])
    assert stats.chisquare(table.ravel()).pvalue > 1e-4


def test_a_bounded_box_is_drawn_uniformly_and_an_unbounded_one_normally() -> None:
    low, high = np.array([-2.0, 0.0], np.float32), np.array([2.0, 9.0], np.float32)
    samples = np.asarray(draw(Box(low, high), 5_000))
    for index in range(2):
        assert stats.kstest(samples[:, index], stats.uniform(low[index], high[index] - low[index]).cdf).pvalue > 1e-4
    normal = np.asarray(draw(Box(-np.inf, np.inf, ()), 5_000))
    assert stats.kstest(normal, "norm").pvalue > 1e-4
    one_sided = np.asarray(draw(Box(3.0, np.inf, ()), 5_000))
    assert stats.kstest(one_sided - 3.0, "expon").pvalue > 1e-4


def test_the_widest_box_is_drawn_over_its_whole_range() -> None:
    largest = float(np.finfo(np.float32).max)
    samples = np.asarray(draw(Box(-largest, largest, ()), 2_000), np.float64)
    assert np.all(np.isfinite(samples))
    assert stats.kstest(samples / largest, stats.uniform(-1, 2).cdf).pvalue > 1e-4


@pytest.mark.parametrize("bounds", [(0, np.inf), (-np.inf, 0), (0, 2**40), (-np.inf, np.inf)], ids=str)
def test_an_int64_box_beyond_int32_is_drawn_from_the_part_that_jax_can_hold(bounds: tuple) -> None:
    space = Box(*bounds, (), np.int64)
    samples = np.asarray(draw(space, 1_000))
    assert np.all(samples >= space.low)
    assert np.all(samples <= space.high)
    assert len(np.unique(samples)) > 900


@pytest.mark.parametrize(
    ("space", "outside"),
    [
        (Box(-1.0, 1.0, (2,)), [np.array([0.0, 1.1], np.float32), np.zeros((3,), np.float32), np.array([0, np.nan])]),
        (Box(-1.0, 1.0, (2,)), [[0.0, 0.0], "text", None, np.array([True, False])]),
        (Box(0, 255, (), np.uint8), [np.int32(256), np.int32(-1), np.float32(3.0)]),
        (Discrete(3), [3, -1, 1.0, np.zeros((1,), np.int32), True]),
        (Discrete(3, start=5), [4, 8]),
        (MultiDiscrete([3, 2]), [np.array([2, 2]), np.array([-1, 0]), np.array([0])]),
        (MultiBinary(2), [np.array([0, 2]), np.array([0.0, 1.0])]),
        (Dict(a=Discrete(2)), [{}, {"a": 2}, {"a": 1, "b": 1}, 1]),
        (Tuple([Discrete(2)]), [(), (2,), (1, 1), 1]),
    ],
    ids=str,
)
def test_what_is_outside_is_not_contained(space: Space, outside: list) -> None:
    for x in outside:
        assert space.contains(x) is False


@pytest.mark.parametrize("as_array", [np.asarray, jnp.asarray])
@pytest.mark.parametrize(
    ("space", "x", "inside"),
    [
        (Box(-5, 1000, (), np.int32), np.int8(3), True),
        (Box(-5, 5, (), np.int32), np.uint8(3), True),
        (Box(-5, 5, (), np.int32), np.uint8(251), False),
        (Box(0, 255, (), np.uint8), np.int8(-1), False),
        (Box(-np.inf, np.inf, ()), np.int32(3), True),
        (Box(0.5, 1.5, ()), np.int32(0), False),
        (Discrete(300), np.int8(5), True),
        (Discrete(3, start=-1), np.uint8(255), False),
        (MultiDiscrete([300]), np.array([5], np.int8), True),
    ],
    ids=str,
)
def test_a_number_of_another_width_is_judged_by_its_value(space: Space, x: Any, inside: bool, as_array: Any) -> None:
    assert space.contains(as_array(x)) is inside


def test_contains_can_be_traced() -> None:
    space = Dict(x=Box(-1.0, 1.0, (2,)), n=Discrete(3))
    contains = jax.jit(space.contains)
    assert bool(contains(PyTreeDict(x=jnp.zeros((2,)), n=jnp.array(2))))
    assert not bool(contains(PyTreeDict(x=jnp.array([0.0, 2.0]), n=jnp.array(2))))
    assert not bool(contains(PyTreeDict(x=jnp.zeros((2,)), n=jnp.array(3))))


def test_the_order_of_declaration_changes_neither_the_dict_space_nor_its_samples() -> None:
    one, other = Dict(a=Discrete(9), b=Box(0, 1, (2,))), Dict(b=Box(0, 1, (2,)), a=Discrete(9))
    assert one == other
    assert hash(one) == hash(other)
    jax.tree.map(np.testing.assert_array_equal, one.sample(jax.random.key(0)), other.sample(jax.random.key(0)))


def test_the_parts_of_a_dict_and_of_a_tuple_are_drawn_independently() -> None:
    part = Box(0.0, 1.0, ())
    for space in (Dict(a=part, b=part), Tuple([part, part])):
        first, second = jax.tree.leaves(draw(space, 2_000))
        assert abs(np.corrcoef(first, second)[0, 1]) < 0.1


def test_legacy_and_typed_keys_draw_the_same() -> None:
    space = Dict(a=Discrete(9), b=Box(0, 1, (2,)))
    typed, legacy = space.sample(jax.random.key(3)), space.sample(jax.random.PRNGKey(3))
    jax.tree.map(np.testing.assert_array_equal, typed, legacy)


def test_a_space_cannot_be_changed() -> None:
    box, discrete = Box(-1.0, 1.0, (2,)), Discrete(3)
    with pytest.raises(AttributeError, match="immutable"):
        discrete.n = 4
    with pytest.raises(ValueError, match="read-only"):
        box.low[0] = -5.0


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: Box(1.0, -1.0, (2,)), "low must not exceed high.*1.0.*-1.0"),
        (lambda: Box(np.zeros(3), np.ones(3), (2,)), r"\[3\].*\[2\]"),
        (lambda: Discrete(0), "n=0.*at least 1"),
        (lambda: MultiDiscrete([2, 0]), r"at least 1.*\[2, 0\]"),
        (lambda: MultiDiscrete([2, 3], start=[1]), r"same shape.*\[1\]"),
        (lambda: MultiBinary(0), "n=0.*at least 1"),
        (lambda: from_gymnasium(gym_spaces.Text(5)), "Text.*expected Box"),
        (lambda: to_gymnasium(gym_spaces.Discrete(3)), "expected a space of rookery.spaces.*Discrete"),
    ],
)
def test_a_space_that_makes_no_sense_is_refused(build: Any, message: str) -> None:
    with pytest.raises(InvalidInputError, match=message):
        build()


@pytest.mark.parametrize(
    ("space", "x", "message"),
    [
        (Discrete(3), jnp.zeros((4, 1), jnp.int32), r"action has shape \[4, 1\]; expected \[4\]"),
        (Discrete(3), jnp.zeros((4,)), r"action has dtype float32; expected int32"),
        (Discrete(3), None, "action is NoneType"),
        (Box(-1, 1, (2,)), jnp.zeros((2,)), r"action has shape \[2\]; expected \[4, 2\]"),
        (Dict(a=Discrete(3)), {"b": 1}, r"action is \['b'\]; expected .*\['a'\]"),
        (Dict(a=Discrete(3)), {"a": jnp.zeros((4,))}, r"action\['a'\] has dtype float32"),
        (Tuple([Discrete(3)]), (jnp.zeros((4,)),), r"action\[0\] has dtype float32"),
        (Tuple([Discrete(3)]), (), "action is 0 entries; expected a tuple of 1"),
    ],
)
def test_check_says_what_was_given_and_what_was_expected_also_while_tracing(space: Space, x: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        space.check(x, "action", (4,))
    with pytest.raises(ShapeError, match=message):
        jax.eval_shape(lambda x: space.check(x, "action", (4,)), x)


WIDE = Box(-1e300, 1e300, (2,), np.float64)
ALIKE = [
    (Discrete(2), Discrete(2, dtype=np.int64)),
    (MultiDiscrete([2, 3]), MultiDiscrete([2, 3], dtype=np.int64)),
    (Box(-0.1, 0.1, (2,)), Box(-0.1, 0.1, (2,), np.float64)),
    (WIDE, Box(-np.inf, np.inf, (2,))),
    (Dict(a=Discrete(2), b=Box(0, 1, ())), Dict(b=Box(0, 1, (), np.float64), a=Discrete(2))),
    (Tuple([Discrete(2), MultiBinary(3)]), Tuple([Discrete(2, dtype=np.int64), MultiBinary(3)])),
]
DIFFERENT = [
    (Discrete(2), Discrete(3)),
    (Discrete(2), Discrete(2, start=1)),
    (MultiDiscrete([2, 3]), MultiDiscrete([3, 2])),
    (Box(-0.1, 0.1, (2,)), Box(-0.1, 0.2, (2,))),
    (Box(0, 1, (2,)), Box(0, 1, (3,))),
    (Box(0, 1, (2,)), Box(0, 1, (2,), np.uint8)),
    (MultiBinary(2), MultiBinary(3)),
    (Discrete(2), MultiBinary(2)),
    (Dict(a=Discrete(2)), Dict(b=Discrete(2))),
    (Dict(a=Discrete(2)), Dict(a=Discrete(3))),
    (Tuple([Discrete(2)]), Tuple([Discrete(2), Discrete(2)])),
]


@pytest.mark.parametrize(("one", "other"), ALIKE, ids=str)
def test_spaces_are_alike_if_only_dtypes_that_jax_lacks_differ(one: Space, other: Space) -> None:
    assert alike(one, other)
    assert alike(other, one)


@pytest.mark.parametrize(("one", "other"), DIFFERENT, ids=str)
def test_other_spaces_are_not_alike(one: Space, other: Space) -> None:
    assert not alike(one, other)
    assert not alike(other, one)
