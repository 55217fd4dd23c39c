"""Self-play on a host environment: drawn opponents, frozen policies and snapshots, through training and its files."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

import rookery
from rookery.api.teams import read_teams
from rookery.configs import named_again
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.registry import build_workflow
from rookery.runners.acting.assignment import Assignment
from rookery.runners.acting.roles import TRAIN
from rookery.runners.groups.group import ActingSpec, EnvSpec, FragmentRequest, LocalRunners, RunnerSpec
from rookery.runners.recording.episode import EpisodeMetric, LiveEpisode
from rookery.runs.directory import RunDirectory
from rookery.trust import UntrustedError, strangers_config
from rookery.workflows.evaluation import TeamEvaluator, pool_sizes_of
from rookery.workflows.host.multi_agent_collector import MultiAgentCollector
from rookery.workflows.policies import assign_policies
from tests.host_training import advance, is_live, used_anew, watch_collecting

pytestmark = pytest.mark.third_party

GAME = "pettingzoo/classic.tictactoe_v3"
PLAYERS = ("player_1", "player_2")
BOTH = {"player_*": ["main", "past"]}
SNAPSHOT = {"of": "main", "into": "past", "every": 2, "keep": 3}
POOL = ("past_0", "past_1", "past_2")
NUM_ENVS, SEED = 3, 5


def config(env: dict[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    agent = {"name": "a2c", "num_envs": NUM_ENVS, "rollout_length": 16, "network": {"hidden_sizes": [8]}}
    return {
        "agent": agent,
        "env": {"name": GAME, "policies": BOTH, "frozen": ["past"]} | (env or {}),
        "snapshot": SNAPSHOT,
        "evaluation": {"num_episodes": 6},
        "recorders": [],
        "seed": SEED,
    } | changes


@pytest.fixture(scope="module")
def shared() -> Callable[[], Any]:
    return functools.cache(lambda: build_workflow(config()))


@pytest.fixture
def workflow(shared: Callable[[], Any]) -> Iterator[Any]:
    with used_anew(shared) as begin:
        yield begin()


@pytest.fixture
def samples(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that runners sample from now on."""
    collected: list[Any] = []
    merge = MultiAgentCollector.merge

    def watched(self: Any, samples: Any, staleness: Any) -> Any:
        collected.extend(samples.values())
        return merge(self, samples, staleness)

    monkeypatch.setattr(MultiAgentCollector, "merge", watched)
    return collected


def episodes_of(samples: list[Any]) -> list[EpisodeMetric]:
    return [episode for sample in samples for episode in sample.episodes]


def drawn(episode: EpisodeMetric, *seeds: int) -> dict[str, str]:
    """Return the policies that the seeds and the number of an episode stand for."""
    assignment = Assignment(
        dict.fromkeys(PLAYERS, ("main", "past")), frozenset({"past"}), {"past": 3}, seeds=tuple(seeds)
    )
    live = LiveEpisode(episode.number, env_index=0, seed=None)
    return {agent: assignment(agent, live) for agent in PLAYERS}


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def test_only_trained_policies_have_learners_rows_and_losses(workflow: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    experiences = watch_collecting(monkeypatch, MultiAgentCollector)
    state, metrics = advance(workflow, workflow.init(workflow.make_key()), 3)
    assert set(state.learner.policies) == {"main"}
    assert set(state.agent_state) == {"main", *POOL}
    for experience in experiences:
        assert set(experience.experiences) == {"main"}
        rows = is_live(experience.experiences.main.trajectory)
        assert rows.shape == (16, 2 * NUM_ENVS)  # one column for each agent that may have the policy
        assert 0 < rows.sum() < 16 * NUM_ENVS  # players take turns, and some of them have the other policy
    assert {name for name in metrics if name.startswith("past")} == {"past/rollout/ep_rew_mean"}


def test_a_return_is_averaged_over_the_episodes_in_which_its_policy_acted(workflow: Any, samples: list[Any]) -> None:
    _, metrics = advance(workflow, workflow.init(workflow.make_key()), 4)
    episodes = episodes_of(samples)
    for name in ("main", "past"):
        returns = [
            sum(episode.agent_returns[agent] for agent, policy in episode.policies.items() if policy.startswith(name))
            for episode in episodes
            if any(policy.startswith(name) for policy in episode.policies.values())
        ]
        mean = metrics[f"{name}/rollout/ep_rew_mean"]
        assert int(mean.weight) == len(returns)
        np.testing.assert_allclose(float(mean.total), sum(returns), atol=1e-5)
    assert int(metrics["past/rollout/ep_rew_mean"].weight) < len(episodes)


@pytest.mark.parametrize("processes", [False, True])
def test_draws_are_the_same_wherever_environments_run(processes: bool, samples: list[Any]) -> None:
    workflow = build_workflow(config({"runner": {"processes": processes}}))
    try:
        advance(workflow, workflow.init(workflow.make_key()), 2)
    finally:
        workflow.close()
    episodes = episodes_of(samples)
    assert len({tuple(episode.policies.values()) for episode in episodes}) > 3
    assert all(episode.policies == drawn(episode, SEED, 0) for episode in episodes)


def test_every_runner_of_a_run_draws_for_itself(workflow: Any) -> None:
    training, env = workflow.training, workflow.settings.train.env
    agent_states = training.acting_state(workflow.init(workflow.make_key()))
    group = LocalRunners(RunnerSpec(EnvSpec(env, 2), 16, SEED), num_runners=2)
    try:
        request = FragmentRequest(TRAIN, agent_states)
        group.start(ActingSpec({TRAIN: training.agent}, training.collector.assignment), request)
        group.receive()
        for index in range(2):
            group.send(index, request)
        episodes = {index: reply.sample.episodes for index, reply in group.receive().items()}  # type: ignore[union-attr]
    finally:
        group.close()
    for index, of_runner in episodes.items():
        assert of_runner
        assert all(episode.policies == drawn(episode, SEED, index) for episode in of_runner)


def test_evaluations_draw_by_their_own_episode_numbers(workflow: Any) -> None:
    agents = workflow.init(workflow.make_key()).agent_state
    first, again = (workflow.evaluator.evaluate(agents, jax.random.key(7), 6) for _ in range(2))
    assert_same(first, again)
    numbers = [LiveEpisode(number, 0, None) for number in range(6)]
    assignment = workflow.training.collector.assignment
    with_past = sum(any(assignment(agent, live) != "main" for agent in PLAYERS) for live in numbers)
    assert len(first.policy_returns.past) == with_past < 6 == len(first.policy_returns.main)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    """A run of five iterations, and its last state."""
    path = tmp_path_factory.mktemp("self-play") / "run"
    workflow = build_workflow(config(run_dir=str(path), total_timesteps=5 * 16 * NUM_ENVS))
    try:
        return path, workflow.learn(workflow.init(workflow.make_key()))
    finally:
        workflow.close()


def test_a_resumed_run_goes_on_with_the_next_member_of_the_pool(trained: tuple[Path, Any]) -> None:
    path, state = trained
    assert int(state.iterations) == 5
    resumed = build_workflow(config(run_dir=str(path), total_timesteps=6 * 16 * NUM_ENVS))
    try:
        assert_same(resumed.restore().agent_state, state.agent_state)
        after = resumed.resume()
    finally:
        resumed.close()
    assert int(after.iterations) == 6
    for member in ("past_0", "past_1"):  # the snapshots after two and four iterations
        assert_same(after.agent_state[member], state.agent_state[member])
    assert_same(after.agent_state.past_2, after.agent_state.main)


def test_policy_files_hold_the_pool_and_play_as_the_training_does(trained: tuple[Path, Any]) -> None:
    path, _ = trained
    env, team = EnvConfig(GAME, policies=BOTH, frozen=("past",)), read_teams(RunDirectory.open(path))[1][SEED]
    assert set(team) == {"main", *POOL}
    assert rookery.load(path, policy="past_1").predict(team["main"].obs_space.sample(jax.random.key(0)))[0] in range(9)
    evaluator = TeamEvaluator(env, team, NUM_ENVS, 6, pool_sizes_of(RunDirectory.open(path).config))
    workflow = build_workflow(config(run_dir=str(path)), evaluation_episodes=6)
    try:
        result = evaluator.evaluate(team, jax.random.key(7), 6)
        expected = workflow.evaluator.evaluate(workflow.restore().agent_state, jax.random.key(7), 6)
    finally:
        evaluator.close()
        workflow.close()
    assert_same(result, expected)


def test_a_frozen_policy_without_snapshots_stays_as_it_begins(samples: list[Any]) -> None:
    env = {"policies": {"player_1": "main", "player_2": "rival"}, "frozen": ["rival"]}
    workflow = build_workflow(config(env, snapshot={}))
    try:
        begun = jax.tree.map(np.array, workflow.init(workflow.make_key()).agent_state)
        state, _ = advance(workflow, workflow.init(workflow.make_key()), 1)
    finally:
        workflow.close()
    assert_same(state.agent_state.rival, begun.rival)
    assert all(episode.policies == {"player_1": "main", "player_2": "rival"} for episode in episodes_of(samples))


def test_a_run_begins_with_a_snapshot_of_another(trained: tuple[Path, Any]) -> None:
    path, state = trained
    workflow = build_workflow(config(init_from={"main": f"{path}:past_0"}))
    try:
        agents = workflow.init(workflow.make_key()).agent_state
    finally:
        workflow.close()
    for policy in ("main", *POOL):
        assert_same(agents[policy], state.agent_state.past_0)


def main_begins(agent: Any, episode: LiveEpisode) -> str:
    return "main" if agent == "player_1" else "past"


def test_a_function_of_the_program_assigns_the_policies(samples: list[Any]) -> None:
    workflow = build_workflow(config({"mapping": main_begins}))
    try:
        assert workflow.settings.train.env.mapping == f"{__name__}:main_begins"
        advance(workflow, workflow.init(workflow.make_key()), 1)
    finally:
        workflow.close()
    assert all(episode.policies["player_1"] == "main" for episode in episodes_of(samples))
    assert all(episode.policies["player_2"] in POOL for episode in episodes_of(samples))


def test_a_mapping_that_a_run_names_is_imported_only_if_the_user_names_it_again() -> None:
    name, spaces = "json:dumps", dict.fromkeys(PLAYERS, (None, None))
    env = EnvConfig(GAME, policies=BOTH, mapping=name)
    with strangers_config(), pytest.raises(UntrustedError, match=r"env.mapping=json:dumps imports a module of its own"):
        assign_policies(env, spaces)  # type: ignore[arg-type]
    with strangers_config({name}):
        assert assign_policies(env, spaces).mapping_fn is not None  # type: ignore[arg-type]
    run, others = named_again({"env": {"mapping": name}}, {"env.mapping": "moved:dumps", "total_timesteps": 9})
    assert (run["env"]["mapping"], others) == ("moved:dumps", {"total_timesteps": 9})


@pytest.mark.parametrize(
    ("env", "changes", "message"),
    [
        ({"frozen": ["pst"]}, {"snapshot": {}}, "unknown policy in env.frozen 'pst'. Did you mean 'past'"),
        ({"frozen": ["main", "past"]}, {"snapshot": {}}, "all policies are frozen, nothing would be trained"),
        ({"frozen": []}, {}, r"snapshot.into=past must not be trained: add it to env.frozen=\[\]"),
        ({}, {"snapshot": SNAPSHOT | {"of": "past"}}, "unknown policy in snapshot.of 'past'. Known: main"),
        ({"policies": {"*": ["main", "past", "past_1"]}}, {}, "'past_1' is the name of a snapshot in 'past'"),
        ({"policies": {"*": []}}, {}, r"the policy of '\*' is None; expected a name"),
        ({"policies": None, "mapping": "a:b"}, {}, r"env.mapping=a:b .* add env.policies="),
        ({"name": "classic/cartpole", "policies": None}, {}, r"env.frozen=\['past'\] is for host environments"),
    ],
)
def test_what_does_not_fit_together_is_one_error(env: Any, changes: Any, message: str) -> None:
    with pytest.raises((InvalidInputError, UnknownNameError), match=message) as error:
        build_workflow(config(env, **changes))
    assert "\n" not in str(error.value)
