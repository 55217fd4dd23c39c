"""Population-based training through its workflow: rounds, inheritance, divergence, checkpoints, and its errors."""

import functools
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import rookery
from rookery import cli
from rookery.algorithms.ppo import PPOHyperparameters, PPOWorkflow
from rookery.configs import compose
from rookery.configs.resumption import named_again
from rookery.errors import RookeryError
from rookery.hyperparameters import Hyperparameters, Scalar
from rookery.learning.counter import Counter
from rookery.registry import build_workflow
from rookery.runs.directory import RunDirectory
from rookery.runs.divergence import DivergedError
from rookery.search import Search, Selection
from rookery.workflows.population import PopulationTraining
from rookery.workflows.population_state import PopulationState
from rookery.workflows.workflow import Workflow
from tests.equivalence.interrupted_runs import assert_equal, records_of

SIZE, ITERATIONS = 4, 2
MEMBER = {
    "num_envs": 2,
    "rollout_length": 8,
    "network": {"hidden_sizes": [4]},
    "num_epochs": 1,
    "num_minibatches": 2,
    "normalize_obs": True,
    "normalize_rewards": True,
}
ROUND = SIZE * ITERATIONS * 16
SPACE = {"learning_rate": {"low": 1e-4, "high": 1e-1, "scale": "log"}, "clip_ratio": {"low": 0.05, "high": 0.5}}


def config_of(**changes: Any) -> dict[str, Any]:
    agent: dict[str, Any] = {"name": "pbt", "method": "ppo", "member": MEMBER, "space": SPACE, "num_episodes": 2}
    agent |= {"population_size": SIZE, "iterations_per_round": ITERATIONS, "top": 0.25, "bottom": 0.25}
    return {
        "agent": agent | changes.pop("agent", {}),
        "env": {"name": "classic/pendulum", "episode_length": 5},
        "total_timesteps": 4 * ROUND,
        "record_interval": ROUND,
        "evaluation": {"num_episodes": 2, "interval": 2 * ROUND},
        "recorders": [],
        **changes,
    }


def build(**changes: Any) -> Workflow:
    return build_workflow(config_of(**changes))


@pytest.fixture(autouse=True)
def nothing_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the program that times how experience is gathered, which commands in the docs run."""
    monkeypatch.setattr(PopulationTraining, "collect_seconds", lambda self, state: 0.0)


@functools.cache
def workflow_of(search: str) -> Workflow:
    return build(agent={"search": search})


def population_of(state: Any) -> PopulationState:
    assert isinstance(state.learner, PopulationState)
    return state.learner


def key_data(tree: Any) -> np.ndarray:
    return np.asarray(jax.random.key_data(tree))


def test_a_round_trains_every_member_and_counts_the_steps_of_all() -> None:
    workflow = workflow_of("truncation")
    state = workflow.init(workflow.make_key())
    metrics, after = workflow.step(state)
    assert (int(after.env_steps), int(after.iterations)) == (ROUND, 1)
    np.testing.assert_array_equal(population_of(after).members.env_steps.low, ROUND // SIZE)
    assert int(after.num_updates) == SIZE * ITERATIONS * 2
    assert np.isfinite(float(metrics["train/loss"]))
    for name in ("learning_rate", "clip_ratio"):
        low, middle, high = (float(metrics[f"population/{name}_{kind}"]) for kind in ("min", "median", "max"))
        assert SPACE[name]["low"] <= low < middle < high <= SPACE[name]["high"]


def test_members_start_with_keys_networks_environments_and_numbers_of_their_own() -> None:
    workflow = workflow_of("truncation")
    members = population_of(workflow.init(workflow.make_key())).members
    for leaves in (key_data(members.key), members.hyperparameters.learning_rate, members.hyperparameters.clip_ratio):
        assert len(np.unique(np.asarray(leaves), axis=0)) == SIZE
    kernel = jax.tree.leaves(members.agent_state.params)[-1]
    assert len(np.unique(np.asarray(kernel).reshape(SIZE, -1), axis=0)) == SIZE


def test_an_heir_keeps_its_own_key_environments_and_counters() -> None:
    """A peer copies the whole state, so that an heir sees the same resets, noise and minibatches as its parent."""
    workflow = workflow_of("truncation")
    state = workflow.init(workflow.make_key())
    for _ in range(3):
        _, state = workflow.step(state)
        population = population_of(state)
        members, row = population.members, int(population.iterations) - 1
        parents = np.asarray(population.history.parents)[row]
        (heir,) = np.flatnonzero(parents != np.arange(SIZE))
        parent = parents[heir]
        for leaf in jax.tree.leaves(members.agent_state.params):
            np.testing.assert_array_equal(leaf[heir], leaf[parent])
        assert np.any(key_data(members.key)[heir] != key_data(members.key)[parent])
        for name in SPACE:
            number = np.asarray(getattr(members.hyperparameters, name))
            assert number[heir] != number[parent]
    assert int(population.num_heirs) == 3
    obs = np.asarray(members.source_state.env_state.obs)
    assert len(np.unique(obs.reshape(SIZE, -1), axis=0)) == SIZE


def test_the_agent_of_a_run_is_that_of_the_best_member() -> None:
    workflow = workflow_of("truncation")
    _, state = workflow.step(workflow.init(workflow.make_key()))
    population = population_of(state)
    best = int(population.best_member)
    assert best == int(np.nanargmax(population.fitness))
    of_best = jax.tree.map(lambda leaf: leaf[best], population.members.agent_state)
    assert_equal(state.agent_state, of_best)


MEMBERS = {
    "ppo": MEMBER | {"learning_rate": 0.1, "num_epochs": 4},  # or no ratio reaches the clip
    "sac": {"num_envs": 2, "rollout_length": 2, "batch_size": 4, "warmup_steps": 8, "network": {"hidden_sizes": [4]}},
    "openes": {"population_size": 4, "network": {"hidden_sizes": [4]}},
}


@pytest.mark.parametrize("method", MEMBERS)
def test_a_changed_number_acts_in_the_next_iterations_for_every_name(method: str) -> None:
    """In a peer, rates that are baked into an optimizer stay what they were."""
    training = build(agent={"method": method, "member": MEMBERS[method], "space": {}, "search": "none"}).training
    member = training.member.init(jax.random.key(0))
    space = training.search.space

    def trained(name: str | None) -> list[np.ndarray]:
        numbers = space.numbers_of(member.hyperparameters)
        if name is not None:
            numbers[name] = numbers[name] * 0.5 + 1e-3
        state = member.replace_learner(hyperparameters=space.with_numbers(member.hyperparameters, numbers))
        for _ in range(2):
            _, state = training.member.step(state)
        return [np.asarray(leaf) for leaf in jax.tree.leaves(state.agent_state.params)]

    unchanged = trained(None)
    for name in space.names:
        assert any(np.any(one != other) for one, other in zip(trained(name), unchanged, strict=True)), name


def test_observation_statistics_come_with_the_policy() -> None:
    """A peer throws away those of the parent, so an heir would see its parent's policy other observations."""
    workflow = workflow_of("truncation")
    _, state = workflow.step(workflow.init(workflow.make_key()))
    population = population_of(state)
    parents = np.asarray(population.history.parents)[0]
    (heir,) = np.flatnonzero(parents != np.arange(SIZE))
    for leaf in jax.tree.leaves(population.members.agent_state.obs_preprocessor_state):
        np.testing.assert_array_equal(leaf[heir], leaf[parents[heir]])
    means = jax.tree.leaves(population.members.agent_state.obs_preprocessor_state.mean)[0]
    assert len(np.unique(np.asarray(means).reshape(SIZE, -1), axis=0)) == SIZE - 1


def test_all_members_play_the_same_starts() -> None:
    workflow = workflow_of("truncation")
    state = workflow.init(workflow.make_key())
    one = jax.tree.map(lambda leaf: leaf[:1], population_of(state).members.agent_state)
    copies = jax.tree.map(lambda leaf: jnp.broadcast_to(leaf, (SIZE, *leaf.shape[1:])), one)
    fitness = workflow.training._fitness(copies, jax.random.key(1))
    assert len(np.unique(np.asarray(fitness))) == 1


def poisoned(state: Any, *places: int) -> Any:
    """Make the parameters of members NaN."""
    population = population_of(state)
    params = jax.tree.map(
        lambda leaf: leaf.at[jnp.array(places)].set(jnp.nan), population.members.learner.agent_state.params
    )
    learner = population.members.learner
    learner = learner.replace(agent_state=learner.agent_state.replace(params=params))
    return state.replace(learner=population.replace(members=population.members.replace(learner=learner)))


def test_a_member_that_diverged_is_counted_replaced_and_never_the_best() -> None:
    workflow = workflow_of("truncation")
    metrics, state = workflow.step(poisoned(workflow.init(workflow.make_key()), 0, 1))
    population = population_of(state)
    np.testing.assert_array_equal(np.isnan(population.fitness), [True, True, False, False])
    assert int(population.num_diverged) == 2
    assert int(population.best_member) in (2, 3)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(population.members.agent_state.params))
    assert all(np.isfinite(value) for value in metrics.values())


def test_the_heir_of_a_diverged_member_starts_without_its_environments_and_rows() -> None:
    """They contain NaN: with them, the heir would diverge in each round."""
    member = {"num_envs": 2, "batch_size": 4, "warmup_steps": 8, "buffer_capacity": 200, "prioritized": True}
    member |= {"network": {"hidden_sizes": [4]}}
    space = {"actor_learning_rate": {"low": 1e-4, "high": 1e-2}}
    workflow = build(agent={"method": "ddpg", "member": member, "space": space, "population_size": 4})
    _, state = workflow.step(poisoned(workflow.init(workflow.make_key()), 0))
    members = population_of(state).members
    np.testing.assert_array_equal(members.learner.buffer_state.num_rows[0], 0)
    assert np.isfinite(members.source_state.env_state.obs).all()
    for _ in range(2):
        _, state = workflow.step(state)
        assert np.isfinite(population_of(state).fitness).all()


def test_environments_and_returns_of_a_diverged_on_policy_member_start_anew() -> None:
    workflow = workflow_of("truncation")
    _, state = workflow.step(poisoned(workflow.init(workflow.make_key()), 0))
    members = population_of(state).members
    assert all(
        np.isfinite(leaf).all() for leaf in (members.source_state.env_state.obs, members.learner.reward_scaling.returns)
    )
    _, state = workflow.step(state)
    assert np.isfinite(population_of(state).fitness).all()


def test_a_run_goes_on_with_members_that_diverged_and_stops_when_all_have() -> None:
    workflow = workflow_of("none")
    state = workflow.init(workflow.make_key())
    after = workflow.learn(poisoned(state, 1))
    assert int(after.iterations) == 4
    assert int(population_of(after).num_diverged) == 4
    with pytest.raises(DivergedError, match="its parameters are not finite"):
        workflow.learn(poisoned(state, *range(SIZE)))


def test_random_search_is_the_members_alone() -> None:
    workflow = workflow_of("none")
    state = workflow.init(workflow.make_key())
    after = workflow.learn(state)
    alone = jax.tree.map(lambda leaf: leaf[1], population_of(state).members)
    member = workflow.training.member
    for _ in range(4 * ITERATIONS):
        _, alone = member.step(alone)
    in_population = jax.tree.map(lambda leaf: leaf[1], population_of(after).members)
    compare = functools.partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6)
    jax.tree.map(compare, in_population.agent_state.params, alone.agent_state.params)
    np.testing.assert_array_equal(key_data(in_population.key), key_data(alone.key))


def test_nobody_takes_over_during_the_warmup(monkeypatch: pytest.MonkeyPatch) -> None:
    workflow, num_heirs = workflow_of("truncation"), []
    training, population = workflow.training, population_of(workflow.init(workflow.make_key()))
    monkeypatch.setattr(training, "rounds", replace(training.rounds, warmup_rounds=2))
    numbers = {name: getattr(population.members.hyperparameters, name) for name in SPACE}
    for num_rounds in range(3):
        after = population.replace(iterations=Counter.of(num_rounds))
        selection = training._select(after, numbers, jnp.arange(SIZE, dtype=jnp.float32), jax.random.key(0))
        num_heirs.append(int(jnp.sum(selection.parents != jnp.arange(SIZE))))
    assert num_heirs == [0, 0, 1]


def test_a_run_records_evaluates_saves_all_members_and_resumes_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole, part = tmp_path / "whole", tmp_path / "part"
    workflow = build(run_dir=str(whole), recorders=["jsonl"])
    expected = workflow.learn(workflow.init(workflow.make_key()))

    def stop(event: Any) -> None:
        if int(event.state.iterations) == 2:
            event.stop()

    workflow.set_run_dir(str(part))
    workflow.learn(workflow.init(workflow.make_key()), stop)
    from_file = build_workflow(RunDirectory.open(part).config | {"run_dir": str(part)})
    assert from_file.settings.to_mapping() == workflow.settings.to_mapping()
    resumed = workflow.resume()
    assert_equal(resumed, expected)
    assert records_of(part) == records_of(whole)
    last = records_of(whole)[-1]
    assert last["population/num_heirs"] == 4
    assert {"population/fitness_median", "population/best_member", "eval/mean_reward"} <= set(last)

    best = population_of(expected).best_member
    policies = {member: rookery.load(whole, member=member) for member in range(SIZE)}
    assert_equal(policies[int(best)].agent_state, rookery.load(whole).agent_state)
    with pytest.raises(RookeryError, match=r"has no policy 'policy\.individual-4'"):
        rookery.load(whole, member=4)

    parents = np.asarray(population_of(expected).history.parents)[3]
    other = next(member for member in range(SIZE) if member not in (best, *np.flatnonzero(parents == best)))
    shown = []
    for options in ([], ["--member", str(best)], ["--member", str(other)]):
        assert cli.main(["evaluate", str(whole), "--episodes", "4", *options]) == 0
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != shown[2]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"env": {"name": "gymnasium/CartPole-v1"}}, "is on the host: choose a device environment"),
        ({"agent": {"search": "tuncation"}}, "unknown search 'tuncation'. Did you mean 'truncation'"),
        ({"agent": {"search": f"{__name__}:SIZE"}}, "is 4: expected a subclass of rookery.search.Search"),
        (
            {"agent": {"method": "sac", "member": {"warmup_steps": 1000}, "space": {}}},
            "agent.member.warmup_steps=1000 must be less than total_timesteps=128 of a member",
        ),
        ({"agent": {"method": "pbt"}}, "agent.method=pbt: members cannot be populations"),
        ({"agent": {"method": "pp0"}}, "unknown agent 'pp0'. Did you mean 'ppo'"),
        ({"agent": {"member": {"num_env": 3}}}, "agent.member: unknown key 'num_env'. Did you mean 'num_envs'"),
        ({"agent": {"member": {"num_envs": 0}}}, "agent.member.num_envs=0 must be an integer of at least 1"),
        ({"agent": {"space": {"clip_ratio": {"low": -1.0, "high": 1.0}}}}, "agent.space.clip_ratio.low=-1"),
        ({"agent": {"method": "a2c", "member": {}, "space": {}}}, "agent.method=a2c has no default: name what to"),
        (
            {"agent": {"method": "ga", "member": {}, "space": {"initial_std": {"low": 0.1, "high": 1.0}}}},
            "initial_std is used once, at the start, so a later change has no effect",
        ),
        ({"agent": {"population_size": 3, "search": "cso"}}, "agent.population_size=3 must be even"),
        ({"agent": {"top": 0.8, "bottom": 0.5}}, "the best 3 and the worst 2 members overlap in a population of 4"),
    ],
)
def test_a_population_that_cannot_be_trained_is_one_error(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(RookeryError, match=message):
        build(**changes)


def test_the_command_line_names_method_settings_and_space() -> None:
    overrides = ["agent=pbt", "agent.method=openes", "agent.member.population_size=32", "env=classic/pendulum"]
    config = compose([*overrides, "agent.space.noise_std={low: 1e-3, high: 1, scale: log}"])
    settings = build_workflow(config).settings
    assert settings.method.member["population_size"] == 32
    assert settings.method.space == {"noise_std": {"low": 1e-3, "high": 1, "scale": "log"}}
    assert settings.to_mapping() == build_workflow(settings.to_mapping()).settings.to_mapping()


def test_without_a_space_that_of_the_method_is_searched() -> None:
    config = compose(["agent=pbt", "env=classic/cartpole"])
    assert set(build_workflow(config).settings.method.space) == {
        "learning_rate",
        "entropy_coefficient",
        "discount",
        "gae_lambda",
        "clip_ratio",
    }


class OwnHyperparameters(PPOHyperparameters):
    """PPO with a number that is declared without `number`."""

    bonus: Scalar = 1.0


class OwnPPO(PPOWorkflow):
    """A method of a user."""

    hyperparameters_class = OwnHyperparameters


class NumberlessPPO(PPOWorkflow):
    """A method of a user that declares no hyper-parameters."""

    hyperparameters_class = Hyperparameters


def test_numbers_of_an_own_method_can_be_searched_without_a_declared_range() -> None:
    space = {"bonus": {"low": -1.0, "high": 1.0}}
    training = build(agent={"method": f"{__name__}:OwnPPO", "space": space}).training
    assert training.search.space.names == ("bonus",)
    with pytest.raises(RookeryError, match=r"'bonus'\. Hyperparameters declares no numbers"):
        build(agent={"method": f"{__name__}:NumberlessPPO", "space": space})


class Chain(Search):
    """A search of a user: every member takes over from the one before it."""

    def select(self, numbers: Any, fitness: Any, search_state: Any, hyperparameters: Any, key: Any) -> Selection:
        unchanged = self.unchanged(numbers, search_state)
        return unchanged.replace(parents=jnp.maximum(unchanged.parents - 1, 0))


@pytest.mark.parametrize("given", [Chain, f"{__name__}:Chain"])
def test_an_own_search_decides_and_its_name_is_in_the_config(given: Any) -> None:
    workflow = build(agent={"search": given})
    search = workflow.training.search
    selection = search.select({}, jnp.zeros(SIZE), search.init(), None, None)
    assert selection.parents.tolist() == [0, 0, 1, 2]
    config = workflow.settings.to_mapping()
    assert config["agent"]["search"] == f"{__name__}:Chain"
    again, _ = named_again(config, {"agent.search": "moved:Chain"})
    assert again["agent"]["search"] == "moved:Chain"
    with pytest.raises(RookeryError, match=r"agent\.search: this run has no own class there"):
        named_again(config | {"agent": config["agent"] | {"search": "cso"}}, {"agent.search": f"{__name__}:Chain"})


def test_replay_buffers_that_take_much_memory_are_announced_and_more_than_there_is_are_refused(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def build_with(capacity: int) -> None:
        build(agent={"method": "sac", "member": {"buffer_capacity": capacity}, "space": {}}, total_timesteps=10**12)

    build_with(2**10)
    assert not caplog.records
    build_with(2**23)
    assert "agent.population_size=4 replay buffers of agent.member.buffer_capacity=8388608 take 1." in caplog.text
    with pytest.raises(RookeryError, match="buffer_capacity=1073741824"):
        build_with(2**30)
