"""Search spaces: scales, checks against declared ranges, and random numbers for each name and member."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.algorithms.evolution.ga import GAHyperparameters
from rookery.algorithms.hybrid.workflow import hyperparameters_of
from rookery.algorithms.ppo import PPOHyperparameters
from rookery.algorithms.sac import SACHyperparameters
from rookery.errors import RookeryError
from rookery.hyperparameters import Hyperparameters, LinearSchedule
from rookery.search import SearchRange, SearchSpace
from rookery.workflows.evolution.hybrids import HybridHyperparameters

RATE = {"low": 1e-5, "high": 3e-2, "scale": "log"}
DISCOUNT = {"low": 0.9, "high": 0.999, "scale": "complement"}
CLIP = {"low": 0.05, "high": 0.5}
RANGES = [SearchRange(**RATE), SearchRange(**DISCOUNT), SearchRange(**CLIP), SearchRange(low=-3.0, high=2.0)]
NUM_MEMBERS = 10_000


def space_of(hyperparameters: Hyperparameters | None = None, **space: object) -> SearchSpace:
    return SearchSpace.of(space, hyperparameters or PPOHyperparameters())


def keys(num_members: int = NUM_MEMBERS) -> jax.Array:
    return jax.random.split(jax.random.key(0), num_members)


@pytest.mark.parametrize("own", RANGES, ids=lambda own: own.scale)
def test_units_and_numbers_convert_into_each_other(own: SearchRange) -> None:
    places = jnp.linspace(0.0, 1.0, 101)
    numbers = own.from_unit(places)
    np.testing.assert_allclose(own.to_unit(numbers), places, atol=3e-5)
    np.testing.assert_allclose(numbers[jnp.array([0, -1])], [own.low, own.high], rtol=1e-6)
    assert np.all(np.diff(numbers) > 0.0)
    np.testing.assert_array_equal(own.from_unit(jnp.array([-0.5, 1.5])), np.float32([own.low, own.high]))


@pytest.mark.parametrize("own", RANGES, ids=lambda own: own.scale)
def test_samples_are_uniform_on_the_scale(own: SearchRange) -> None:
    places = np.asarray(own.to_unit(jax.vmap(own.sample)(keys())))
    shares = np.histogram(places, bins=10, range=(0.0, 1.0 + 1e-6))[0] / NUM_MEMBERS
    np.testing.assert_allclose(shares, 0.1, atol=5.0 * np.sqrt(0.09 / NUM_MEMBERS))


def test_a_perturbation_multiplies_the_number_on_the_scale_log_and_the_complement_on_the_scale_complement() -> None:
    assert SearchRange(**RATE).perturb(jnp.float32(1e-3), jnp.float32(1.25)) == pytest.approx(1.25e-3)
    assert SearchRange(**DISCOUNT).perturb(jnp.float32(0.99), jnp.float32(1.25)) == pytest.approx(0.9875)


def test_a_temperature_is_multiplied_and_not_its_logarithm() -> None:
    """A peer multiplies `log_alpha`: near a temperature of 1 nothing changes, and below it up and down swap."""
    own = SearchRange(low=1e-3, high=10.0, scale="log")
    assert own.perturb(jnp.float32(1.0), jnp.float32(1.25)) == pytest.approx(1.25)
    assert own.perturb(jnp.float32(0.5), jnp.float32(1.25)) == pytest.approx(0.625)


@pytest.mark.parametrize(
    ("low", "high", "start", "expected"),
    [(0.05, 0.5, 0.2, (0.16, 0.25)), (-2.0, -0.5, -1.0, (-1.25, -0.8)), (0.0, 0.5, 0.0, (0.0, 0.05))],
)
def test_a_linear_number_is_multiplied_unless_a_factor_would_never_leave_0(
    low: float, high: float, start: float, expected: tuple[float, float]
) -> None:
    own = SearchRange(low=low, high=high)
    perturbed = [float(own.perturb(jnp.float32(start), jnp.float32(factor))) for factor in (0.8, 1.25)]
    np.testing.assert_allclose(sorted(perturbed), expected, rtol=1e-6)


def test_perturbed_numbers_stay_between_the_bounds() -> None:
    own = SearchRange(**CLIP)
    assert own.perturb(jnp.float32(0.45), jnp.float32(1.25)) == np.float32(0.5)
    assert own.perturb(jnp.float32(0.055), jnp.float32(0.8)) == np.float32(0.05)


def test_numbers_are_perturbed_independently_of_each_other_and_of_other_members() -> None:
    space = space_of(learning_rate=RATE, clip_ratio=CLIP)
    numbers = {"learning_rate": jnp.float32(1e-3), "clip_ratio": jnp.float32(0.2)}
    changed = jax.vmap(lambda key: space.perturb(numbers, key, 1.25))(keys())
    rises = [np.asarray(changed[name] > numbers[name]) for name in space.names]
    # A peer draws one factor for all names.
    assert np.mean(rises[0] == rises[1]) == pytest.approx(0.5, abs=0.02)
    assert np.mean(rises[0]) == pytest.approx(0.5, abs=0.02)
    assert {round(float(ratio), 5) for ratio in changed["clip_ratio"] / 0.2} == {0.8, 1.25}


def test_the_numbers_of_a_name_do_not_depend_on_what_else_is_searched() -> None:
    alone, both = space_of(learning_rate=RATE), space_of(learning_rate=RATE, clip_ratio=CLIP)
    key = jax.random.key(3)
    assert alone.sample(key)["learning_rate"] == both.sample(key)["learning_rate"]


def test_resampled_numbers_are_drawn_from_the_whole_range() -> None:
    space = space_of(learning_rate=RATE)
    numbers = {"learning_rate": jnp.float32(1e-5)}
    changed = jax.vmap(lambda key: space.perturb(numbers, key, 1.25, resample_probability=0.25))(keys())
    share_far = np.mean(np.asarray(changed["learning_rate"]) > 2e-5)
    expected = 0.25 * float(1.0 - SearchRange(**RATE).to_unit(jnp.float32(2e-5)))
    assert share_far == pytest.approx(expected, abs=0.015)


def test_a_schedule_is_searched_by_its_start_and_its_end_keeps_the_ratio() -> None:
    base = PPOHyperparameters(learning_rate=LinearSchedule(start=1e-3, end=1e-4, steps=1000.0))
    space = space_of(base, learning_rate=RATE)
    assert space.numbers_of(base)["learning_rate"] == np.float32(1e-3)
    schedule = space.with_numbers(base, {"learning_rate": jnp.float32(2e-2)}).learning_rate
    assert schedule.start == np.float32(2e-2)
    assert schedule.end == pytest.approx(2e-3)
    assert schedule.steps == 1000.0


def test_numbers_take_the_place_of_the_hyper_parameters_and_no_other() -> None:
    space = space_of(learning_rate=RATE, discount=DISCOUNT)
    numbers = space.sample(jax.random.key(0))
    changed = space.with_numbers(PPOHyperparameters(), numbers)
    assert space.numbers_of(changed) == numbers
    assert changed.clip_ratio == PPOHyperparameters().clip_ratio


@pytest.mark.parametrize(
    ("base", "space", "message"),
    [
        ({}, {"learning_rat": RATE}, "Did you mean 'learning_rate'"),
        ({}, {"learning_rate": {"low": 0.0, "high": 1.0, "scale": "log"}}, "low=0 must be greater than 0"),
        ({}, {"discount": {"low": 0.9, "high": 1.0, "scale": "complement"}}, "high=1 must be less than 1"),
        ({}, {"discount": {"low": 0.9, "high": 1.5}}, "agent.space.discount.high=1.5 must lie between 0 and 1"),
        ({}, {"clip_ratio": {"low": 0.3, "high": 0.3}}, "low=0.3 must be less than high=0.3"),
        ({}, {"clip_ratio": {"low": 0.3}}, "agent.space.clip_ratio: missing key 'high'"),
        ({}, {"clip_ratio": {**CLIP, "scale": "lin"}}, "unknown scale 'lin'"),
        ({}, {"clip_ratio": {**CLIP, "end_ratio": 1.0}}, "unknown key 'end_ratio'"),
        ({}, {"clip_ratio": 0.3}, "agent.space.clip_ratio=0.3: expected a mapping"),
        ({}, {"target_kl": {"low": 0.01, "high": 0.1}}, "target_kl is null, which disables it"),
        ({"learning_rate": LinearSchedule(start=0.0, end=1.0, steps=1.0)}, {"learning_rate": RATE}, "starts at 0"),
        (
            {"discount": LinearSchedule(start=0.9, end=0.99, steps=1.0)},
            {"discount": DISCOUNT},
            "discount.high=0.999 ends the schedule at 1.0989, which must lie between 0 and 1",
        ),
    ],
)
def test_a_space_that_cannot_be_searched_is_one_error(base: dict, space: dict, message: str) -> None:
    with pytest.raises(RookeryError, match=message):
        SearchSpace.of(space, PPOHyperparameters(**base))


def test_the_parts_of_a_hybrid_are_no_numbers() -> None:
    parts = hyperparameters_of(HybridHyperparameters, GAHyperparameters, SACHyperparameters)
    with pytest.raises(RookeryError, match=r"unknown hyper-parameter of agent\.space 'learner'"):
        SearchSpace.of({"learner": RATE}, parts(strategy=GAHyperparameters(), learner=SACHyperparameters()))


def test_every_hyper_parameter_of_sac_that_is_a_number_can_be_searched() -> None:
    defaults = SACHyperparameters()
    names = [name for name, value in vars(defaults).items() if value is not None]
    space = SearchSpace.of({name: {"low": 0.5, "high": 1.0} for name in names}, defaults)
    numbers = jax.jit(space.sample)(jax.random.key(0))
    assert sorted(numbers) == sorted(names)
