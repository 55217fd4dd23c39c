"""Several policies in the same environments: each learns only from its own agents.

The environment keeps its own log, with which the tests compare.
"""

import functools
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rookery import cli
from rookery.algorithms.a2c import A2CWorkflow
from rookery.algorithms.ddpg import DDPGWorkflow
from rookery.algorithms.evolution.open_es import OpenESWorkflow
from rookery.algorithms.impala import IMPALAWorkflow
from rookery.algorithms.ppo import PPOWorkflow
from rookery.errors import InvalidInputError, UnknownNameError
from rookery.evaluators.host import HostEvaluator, MultiPolicyEvaluateMetric
from rookery.learning.experience import JointExperience
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict
from rookery.workflows.host.multi_agent_collector import MultiAgentCollector
from tests.host_training import advance, is_live, used_anew, watch_collecting

NAME = "several_tales_v0"
LENGTH = 4


@dataclass
class Log:
    """The log of all environments."""

    seeds: list[int | None] = field(default_factory=list)
    returns: list[dict[str, float]] = field(default_factory=list)
    """Returns of each agent in the finished episodes."""
    num_steps: int = 0
    """Steps that did not raise."""
    num_right: int = 0
    """Actions of `right_0` in them."""
    faults: tuple[int, ...] = ()
    """Indexes of the steps that raise, over all environments."""
    num_faults: int = 0
    num_open: int = 0


class SeveralTales:
    """Every transition can be checked by itself: the observation is `[start, count]`.

    `left_1` sees the start plus 8, and `right_0` also sees a 7. `left_0` and `left_1` get 10 count + action in each of
    four steps, then the episode is truncated. `right_0` joins after the first step, gets its action minus the count,
    and terminates after the third.
    """

    log: ClassVar[Log] = Log()
    possible_agents = ("left_0", "left_1", "right_0")
    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": 30}

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode
        self.agents: list[str] = []
        self.was_looked_at = False
        """Whoever wraps it resets it once, to see what it tells."""
        self.log.num_open += 1

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(0.0, 99.0, (3,) if agent == "right_0" else (2,))

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(3) if agent == "right_0" else gymnasium.spaces.Box(-2.0, 2.0, (1,))

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        if self.was_looked_at:
            self.log.seeds.append(seed)
        self.was_looked_at = True
        self.start, self.count = float(np.random.default_rng(seed).random()), 0
        self.agents = ["left_0", "left_1"]
        self.totals = dict.fromkeys(self.possible_agents, 0.0)
        return self.obs(), {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        assert list(actions) == self.agents
        if self.log.num_steps + self.log.num_faults in self.log.faults:
            self.log.num_faults += 1
            raise ValueError("bad leg")
        self.log.num_steps += 1
        self.log.num_right += "right_0" in actions
        sign = {"right_0": -1.0}
        rewards = {
            agent: sign.get(agent, 10.0) * self.count + float(np.ravel(action)[0]) for agent, action in actions.items()
        }
        for agent, reward in rewards.items():
            self.totals[agent] += reward
        self.count += 1
        if self.count == 1:
            self.agents = [*self.agents, "right_0"]
        obs = self.obs()
        is_over = self.count == LENGTH
        terminated = {agent: agent == "right_0" and self.count == 3 for agent in obs}
        truncated = dict.fromkeys(obs, is_over)
        if is_over:
            self.log.returns.append(self.totals)
        self.agents = [agent for agent in self.agents if not terminated[agent] and not is_over]
        return obs, rewards, terminated, truncated, {agent: {} for agent in obs}

    def obs(self) -> dict[str, np.ndarray]:
        seen = {
            "left_0": [self.start, self.count],
            "left_1": [self.start + 8.0, self.count],
            "right_0": [self.start, self.count, 7.0],
        }
        return {agent: np.array(seen[agent], np.float32) for agent in self.agents}

    def render(self) -> np.ndarray:
        return np.full((4, 6, 3), self.count, np.uint8)

    def close(self) -> None:
        self.log.num_open -= 1


@pytest.fixture(autouse=True)
def log(monkeypatch: pytest.MonkeyPatch) -> Log:
    monkeypatch.setattr(SeveralTales, "log", Log())
    module: Any = ModuleType(NAME)
    module.parallel_env = module.raw_env = SeveralTales
    monkeypatch.setitem(sys.modules, NAME, module)
    return SeveralTales.log


def make(kind: type = A2CWorkflow, env: dict | None = None, network: dict | None = None, **config: Any) -> Any:
    agent = {
        "num_envs": 3,
        "rollout_length": 6,
        "learning_rate": {"start": 0.01, "end": 0.0},
        "network": {"hidden_sizes": [8], "core_size": 4, **(network or {})},
    }
    return kind.build_from_config(
        {
            "agent": agent | config.pop("agent", {}),
            "env": {"name": f"pettingzoo/{NAME}", **(env or {})},
            "evaluation": {"num_episodes": 5},
            "total_timesteps": 400,
            "recorders": [],
            **config,
        }
    )


@pytest.fixture(scope="module")
def shared() -> Callable[..., Any]:
    @functools.cache
    def make_shared(kind: type = A2CWorkflow, core: str | None = None) -> Any:
        agent = {"num_minibatches": 3} if kind is IMPALAWorkflow else {}
        return make(kind, network={"core": core}, agent={"normalize_rewards": core is not None, **agent})

    return make_shared


@pytest.fixture
def begin(shared: Callable[..., Any]) -> Iterator[Callable[..., Any]]:
    """Reset a shared workflow to its start."""
    with used_anew(shared) as begin:
        yield begin


@pytest.fixture
def workflow(begin: Callable[..., Any]) -> Any:
    return begin()


@pytest.fixture
def collected(monkeypatch: pytest.MonkeyPatch) -> list[JointExperience]:
    """All experience that workflows collect."""
    return watch_collecting(monkeypatch, MultiAgentCollector)


def live_rows(trajectory: SampleBatch) -> Any:
    live = is_live(trajectory)
    return jax.tree.map(lambda leaf: np.asarray(leaf)[live], trajectory)


def assert_same(one: Any, other: Any) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def differ(one: Any, other: Any) -> bool:
    leaves = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return any(not np.array_equal(mine, its) for mine, its in leaves)


# Experience.


@pytest.mark.parametrize("faults", [(), (9, 20, 31, 45)])
def test_each_policy_is_given_the_rows_of_its_own_agents(
    faults: tuple[int, ...], workflow: Any, collected: list[JointExperience], log: Log
) -> None:
    log.faults = faults
    state, metrics = advance(workflow, workflow.init(workflow.make_key()), 8)
    num_rows = dict.fromkeys(("left", "right"), 0)
    for joint in collected:
        for policy, num_lanes in (("left", 6), ("right", 3)):
            trajectory = joint.experiences[policy].trajectory
            assert trajectory.rewards.shape == (6, num_lanes)
            rows = live_rows(trajectory)
            num_rows[policy] += len(rows.rewards)
            start, count = rows.obs[:, 0], rows.obs[:, 1]
            env_extras, actions = rows.extras.env_extras, rows.actions.reshape(-1)
            is_left = policy == "left"
            np.testing.assert_allclose(rows.rewards, (10 if is_left else -1) * count + actions, rtol=1e-5, atol=1e-5)
            np.testing.assert_allclose(env_extras.ori_obs[:, :2], np.stack([start, count + 1], axis=1), rtol=1e-6)
            np.testing.assert_array_equal(env_extras.termination, 0.0 * count if is_left else count == 2)
            assert is_left or (rows.obs[:, 2] == 7).all()
            # The learner bootstraps where a lane ends before the others.
            live = is_live(trajectory)
            assert (trajectory.dones[:-1][live[:-1] & ~live[1:]] == 1).all()
    num_discarded = workflow.training.environments.report()["rollout/steps_discarded"]
    assert log.num_faults == len(faults)
    assert (num_discarded > 0) is bool(faults)
    assert int(state.env_steps) == log.num_steps - num_discarded
    assert num_rows["left"] == 2 * int(state.env_steps)
    # The last action of a fragment may belong to the next one.
    assert log.num_right - 3 - num_discarded <= num_rows["right"] <= log.num_right
    assert {int(of_policy.env_steps) for of_policy in state.learner.policies.values()} == {int(state.env_steps)}
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent_state))
    totals = [sum(returns.values()) for returns in log.returns]
    assert metrics["rollout/ep_rew_mean"].weight == len(totals) > 10
    np.testing.assert_allclose(metrics["rollout/ep_rew_mean"].value, np.mean(totals), rtol=1e-5)
    np.testing.assert_allclose(metrics["rollout/ep_len_mean"].value, LENGTH)
    right = [returns["right_0"] for returns in log.returns]
    np.testing.assert_allclose(metrics["right/rollout/ep_rew_mean"].value, np.mean(right), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        metrics["left/rollout/ep_rew_mean"].value, np.mean(totals) - np.mean(right), rtol=1e-5, atol=1e-6
    )
    workflow.close()
    assert log.num_open == 0


def test_a_column_marks_when_it_is_in_another_episode(workflow: Any, log: Log) -> None:
    log.faults = (9, 20, 31, 45)
    agent_state = workflow.init(workflow.make_key()).agent_state
    short = make(agent={"rollout_length": 3})
    collected = [short.training.collect(agent_state)[0] for _ in range(12)]
    short.close()
    assert log.num_faults == 4
    num_going_on = 0
    for policy in ("left", "right"):
        before = np.full(short.training.collector.num_columns(policy), -1.0)
        for joint in collected:
            trajectory = joint.experiences[policy].trajectory
            live, starts = is_live(trajectory), trajectory.obs[..., 0]
            is_new = starts[0] != before
            np.testing.assert_array_equal((trajectory.extras.env_extras.t[0] == 0)[live[0]], is_new[live[0]])
            num_going_on += np.sum(~is_new[live[0]])
            last = starts[np.maximum(live.sum(axis=0) - 1, 0), np.arange(len(before))]
            before = np.where(live.any(axis=0), last, before)
    assert num_going_on > 0


@pytest.mark.parametrize("kind", [A2CWorkflow, IMPALAWorkflow])
def test_recurrent_agents_learn_from_their_own_actions(
    kind: type, begin: Callable[..., Any], collected: list[JointExperience], log: Log
) -> None:
    log.faults = (9, 20)
    workflow = begin(kind, core="gru")
    state = workflow.init(workflow.make_key())

    @jax.jit
    def log_prob_of(agent_state: Any, trajectory: SampleBatch, first_carry: Any) -> Any:
        distribution, _ = workflow.agent.replay(agent_state, trajectory, first_carry)
        return distribution.log_prob(trajectory.extras.policy_extras.raw_action)

    for _ in range(5):
        agent_states = jax.tree.map(jnp.copy, workflow.training.acting_state(state))
        state, _ = advance(workflow, state, 1)
        for policy, experience in collected[-1].experiences.items():
            trajectory, live = experience.trajectory, is_live(experience.trajectory)
            replayed = log_prob_of(agent_states[policy], trajectory, experience.first_carry)
            log_prob = trajectory.extras.policy_extras.log_prob
            np.testing.assert_allclose(replayed[live], log_prob[live], atol=1e-5)
    assert log.num_faults == 2
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.agent_state))


def test_agents_that_share_a_policy_have_one_set_of_parameters(workflow: Any) -> None:
    for policies, expected in (
        (None, {"left", "right"}),
        ("per_agent", {*SeveralTales.possible_agents}),
        ({"left_*": "both", "right_0": "alone"}, {"both", "alone"}),
    ):
        sharing = make(env={"policies": policies})
        assert set(jax.eval_shape(sharing.init, sharing.make_key()).learner.policies) == expected
        sharing.close()
    # Each lane holds one agent, and both of them are there in every env.
    agent_state = workflow.init(workflow.make_key()).agent_state
    of_policies = PyTreeDict(both=agent_state.left, alone=agent_state.right)
    joint, _ = sharing.training.collect(of_policies)
    starts = np.sort(joint.experiences.both.trajectory.obs[0, :, 0])
    np.testing.assert_allclose(starts[3:], starts[:3] + 8.0, rtol=1e-6)
    sharing.close()


# Runs.


def test_a_resumed_run_continues_with_all_policies(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    one = jnp.ones(1)
    played = MultiPolicyEvaluateMetric(
        episode_returns=one, episode_lengths=one, num_left_out=0, policy_returns=PyTreeDict(left=one, right=one)
    )
    monkeypatch.setattr(HostEvaluator, "evaluate", lambda self, *args: played)
    settings: dict[str, Any] = {
        "run_dir": str(tmp_path / "run"),
        "recorders": ["jsonl"],
        "checkpoint": {"interval": 100, "keep": None},
        "record_interval": 100,
    }
    workflow = make(**settings)
    workflow.learn(workflow.init(workflow.make_key()))
    workflow.close()
    run = RunDirectory(tmp_path / "run")
    before, seeds = run.read_metrics(), set(log.seeds)
    for name in ("left/train/loss", "right/train/n_updates", "left/rollout/ep_rew_mean", "right/eval/mean_reward"):
        assert name in before[-1]
    again = make(**settings)
    log.seeds.clear()
    step = Checkpoints(run.checkpoints_path).steps()[2]
    saved = again.restore(step)
    assert int(saved.env_steps) == step
    state = again.resume(step)
    again.close()
    after = run.read_metrics()
    assert not seeds & set(log.seeds)
    assert [row["time/total_timesteps"] for row in after] == [row["time/total_timesteps"] for row in before]
    assert after[-1]["right/train/n_updates"] == int(state.learner.policies.right.num_updates) == int(state.iterations)
    for policy in ("left", "right"):
        assert differ(saved.agent_state[policy], state.agent_state[policy])


def test_with_staleness_every_step_is_learned_from() -> None:
    workflow = make(max_staleness=1)
    state = workflow.learn(workflow.init(workflow.make_key()))
    assert workflow.training.collector.group.runner(0).ledger.env_steps.taken == int(state.env_steps) == 414
    workflow.close()


def test_an_evaluation_plays_num_episodes_and_reports_the_return_of_each_policy(workflow: Any, log: Log) -> None:
    state = workflow.init(workflow.make_key())
    log.seeds.clear()
    metrics, _ = workflow.evaluate(state)
    totals = [sum(returns.values()) for returns in log.returns]
    assert len(totals) == len(set(log.seeds)) == 5
    np.testing.assert_allclose(metrics["eval/mean_reward"], np.mean(totals), rtol=1e-5)
    np.testing.assert_allclose(metrics["eval/mean_ep_length"], LENGTH)
    right = np.mean([returns["right_0"] for returns in log.returns])
    np.testing.assert_allclose(metrics["right/eval/mean_reward"], right, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(metrics["left/eval/mean_reward"], np.mean(totals) - right, rtol=1e-5)
    one_env = make(agent={"num_envs": 1}).evaluator
    result = one_env.evaluate(state.agent_state, jax.random.key(3), 7)
    assert_same(result, workflow.evaluator.evaluate(state.agent_state, jax.random.key(3), 7))


def test_no_name_of_a_policy_hides_what_all_agents_got() -> None:
    workflow = make(env={"policies": {"left_*": "ep", "right_*": "best"}})
    names = set(workflow.training.metrics_shape(jax.eval_shape(workflow.init, workflow.make_key())))
    assert names >= {"rollout/ep_rew_mean", "ep/rollout/ep_rew_mean", "best/rollout/ep_rew_mean"}
    episodes = workflow.evaluator.result_of(np.array([[1.0, 2.0]]), np.array([3]))
    summary = episodes.summary("eval/")
    means = summary["eval/mean_reward"], summary["ep/eval/mean_reward"], summary["best/eval/mean_reward"]
    assert means == (3.0, 1.0, 2.0)
    assert "eval/best_mean_reward" not in summary
    workflow.close()


def test_recurrent_agents_are_evaluated_with_a_carry_each(begin: Callable[..., Any], log: Log) -> None:
    workflow = begin(core="gru")
    agent, agent_states = workflow.agent, workflow.init(workflow.make_key()).agent_state
    act = jax.jit(agent.evaluate_actions)

    def play_by_hand(seed: int | None) -> dict[str, float]:
        env, memories = SeveralTales(), {}
        obs, _ = env.reset(seed=seed)
        while env.agents:
            actions = {}
            for name in env.agents:
                starts = jnp.array([float(name not in memories)])
                extras = PyTreeDict(carry=memories.get(name, agent.initial_carry((1,))), episode_start=starts)
                batch = SampleBatch(obs=jnp.asarray(obs[name])[None], extras=PyTreeDict(policy_extras=extras))
                agent_state = agent_states[name.partition("_")[0]]
                actions[name], summary = act(agent_state, batch, jax.random.key(0))
                memories[name] = summary.carry
            obs, *_ = env.step(actions)
        return env.totals

    log.seeds.clear()
    result = workflow.evaluator.evaluate(agent_states, jax.random.key(3), 5)
    by_hand = [play_by_hand(seed) for seed in list(log.seeds)]
    totals = [sum(returns.values()) for returns in by_hand]
    np.testing.assert_allclose(np.sort(result.episode_returns), np.sort(totals), rtol=1e-6)
    right = [returns["right_0"] for returns in by_hand]
    np.testing.assert_allclose(np.sort(result.policy_returns.right), np.sort(right), rtol=1e-6)


def test_games_in_turns_are_trained_and_evaluated(collected: list[JointExperience]) -> None:
    config = {"env": {"name": "pettingzoo/classic.tictactoe_v3"}, "agent": {"rollout_length": 16}}
    workflow = make(PPOWorkflow, **config)
    state, metrics = advance(workflow, workflow.init(workflow.make_key()), 2)
    assert int(state.env_steps) == 96
    trajectory = collected[1].experiences.shared.trajectory
    assert trajectory.rewards.shape == (16, 6)
    live = is_live(trajectory)
    assert 40 <= live.sum() <= 54  # each player acts in every second step
    masks = live_rows(trajectory).obs["action_mask"]
    assert (np.take_along_axis(masks, live_rows(trajectory).actions[:, None], axis=1) == 1).all()
    assert 5 <= float(metrics["rollout/ep_len_mean"].value) <= 9
    assert np.isfinite(workflow.evaluate(state)[0]["eval/mean_reward"])
    workflow.close()


def test_training_from_the_command_line_leaves_a_video(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], log: Log
) -> None:
    run = tmp_path / "run"
    overrides = ["agent=a2c", f"env=pettingzoo/{NAME}", "env.policies={right_0: solo, *: left}", f"run_dir={run}"]
    sizes = ["agent.num_envs=3", "agent.rollout_length=6", "agent.network.hidden_sizes=[8]", "total_timesteps=90"]
    assert cli.main(["train", *overrides, *sizes, "evaluation.num_episodes=5", "recorders=[jsonl]"]) == 0
    assert RunDirectory(run).episode_path.exists()
    assert cli.main(["resume", str(run), "--trust"]) == 0
    video = tmp_path / "video.gif"
    assert cli.main(["evaluate", str(run), "--episodes", "4", "--trust", "--video", str(video)]) == 0
    assert video.exists()
    assert "solo" in capsys.readouterr().out
    assert log.num_open == 0


TWO_DEVICES = """
import jax
jax.config.update("jax_num_cpu_devices", 2)
from rookery.registry import build_workflow

workflow = build_workflow({
    "agent": {"name": "a2c", "num_envs": 2, "rollout_length": 30, "network": {"hidden_sizes": [8]}},
    "env": {"name": "pettingzoo/mpe2.simple_speaker_listener_v4", "episode_length": 10},
    "evaluation": {"num_episodes": 3}, "total_timesteps": 120, "recorders": [], "devices": 2,
})
state = workflow.init(workflow.make_key())
metrics, state = workflow.step(state)
assert float(metrics["rollout/ep_len_mean"]) == 10.0, metrics
assert int(state.env_steps) == 60
state = workflow.learn(state)
assert int(state.env_steps) == 120
assert float(workflow.evaluate(state)[0]["eval/mean_ep_length"]) == 10.0
workflow.close()
print("well")
"""


def test_the_columns_of_all_policies_are_split_over_two_devices() -> None:
    done = subprocess.run([sys.executable, "-c", TWO_DEVICES], capture_output=True, text=True, timeout=240)
    assert done.stdout.endswith("well\n"), done.stderr


# Settings.


@pytest.mark.parametrize(
    ("env", "message"),
    [
        (
            {"policies": "shared"},
            "agents 'left_0' and 'right_0' cannot share the policy 'shared': their observations differ",
        ),
        ({"policies": {"lefd_0": "a", "*": "b"}}, "unknown agent in env.policies 'lefd_0'. Did you mean 'left_0'"),
        ({"policies": {"left_*": "a"}}, "has no policy for agent 'right_0': add it, or '*' for all others."),
        ({"policies": {"*": 3}}, "env.policies={'*': 3}: the policy of '*' is 3; expected a name"),
        ({"policies": {"*": "a/b"}}, "the policy of '*' is 'a/b'; expected a name: a string without '/'"),
        ({"policies": "each"}, "env.policies='each': expected one of shared, per_agent or a mapping or null"),
        (
            {"name": "gymnasium/CartPole-v1", "policies": "shared"},
            "env.policies='shared' is for host environments with several agents",
        ),
        ({"name": "classic/cartpole", "policies": "per_agent"}, "not for classic/cartpole"),
    ],
)
def test_invalid_settings_are_one_clear_error_at_build(env: dict, message: str, log: Log) -> None:
    with pytest.raises((InvalidInputError, UnknownNameError), match=re.escape(message)):
        make(env=env)
    assert log.num_open == 0


@pytest.mark.parametrize("kind", [DDPGWorkflow, OpenESWorkflow])
def test_methods_for_one_agent_refuse_several(kind: type[Any]) -> None:
    message = f"pettingzoo/{NAME} has several agents, and {kind.agent_name} trains one"
    with pytest.raises(InvalidInputError, match=message):
        kind.build_from_config({"env": {"name": f"pettingzoo/{NAME}"}})
