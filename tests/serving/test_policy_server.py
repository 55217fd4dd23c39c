"""Acting for clients: recurrent states, several agents, structured spaces, and parameters that change meanwhile."""

import asyncio
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

from rookery.agents.policy import PolicyAgent
from rookery.algorithms.sac import SACAgent
from rookery.envs import AutoresetMode, create_env
from rookery.evaluators import Evaluator
from rookery.json_values import as_json
from rookery.networks.policy import PolicyConfig
from rookery.policy import Policy
from rookery.runners.envs.base_env import AgentID
from rookery.serving import policy_server
from rookery.serving.metrics import Metrics
from rookery.serving.policy_server import Ask, act_together
from rookery.serving.reload import Reload
from rookery.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Space, Tuple
from tests.asgi import Serving, policy_of

ZEROS = [0.0, 0.0, 0.0, 0.0]
GRU = PolicyAgent(config=PolicyConfig(core="gru"))


class ListLog:
    """A log of steps in memory, which may break."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []
        self.is_full = False

    def write(self, *line: Any) -> None:
        if self.is_full:
            raise OSError("no space left on device")
        self.lines.append(line)

    def close(self) -> None:
        if self.is_full:
            raise OSError("no space left on device")


def run(scenario: Any, seconds: float = 30.0) -> None:
    asyncio.run(asyncio.wait_for(scenario(), seconds))


def evaluated(policy: Policy, num_steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the observations and actions of an episode of an `Evaluator`."""
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def agent_fn(agent_state: Any, batch: Any, key: Any) -> Any:
        actions, extras = policy.agent.evaluate_actions(agent_state, batch, key)
        jax.debug.callback(lambda *row: seen.append(tuple(map(np.asarray, row))), batch.obs, actions, ordered=True)
        return actions, extras

    env = create_env("classic/pendulum", parallel=1, autoreset_mode=AutoresetMode.DISABLED, episode_length=num_steps)
    Evaluator(
        env=env, agent_fn=agent_fn, initial_carry_fn=policy.agent.initial_carry, max_episode_steps=num_steps
    ).evaluate(policy.agent_state, jax.random.key(3), 1)
    jax.effects_barrier()
    obs, actions = zip(*seen, strict=True)
    return np.concatenate(obs), np.concatenate(actions)


def test_a_served_gru_acts_as_the_evaluator_does_also_among_others_and_after_repetitions_and_a_reload() -> None:
    env = create_env("classic/pendulum", parallel=1, autoreset_mode=AutoresetMode.DISABLED)
    policy = policy_of(GRU, env.obs_space, env.action_space)
    all_obs, expected = evaluated(policy, 12)
    assert len(all_obs) == 12
    forgetful = np.stack([policy.predict(obs)[0] for obs in all_obs])
    assert not np.allclose(forgetful, expected, rtol=1e-3)  # the recurrent state matters

    async def scenario() -> None:
        serving = Serving({"default": policy})
        path, other = await serving.start(), await serving.start()
        rng, carry, actions = np.random.default_rng(0), None, []
        newer = policy.with_state(policy.agent_state, 99)
        reload = Reload(serving.policies, lambda: 99, lambda step: {"default": newer}, serving.metrics)
        for seq, obs in enumerate(all_obs):
            if seq == 6:
                reload.check()
            body = {"seq": seq, "obs": obs.tolist()}
            noise = {"obs": rng.uniform(-1, 1, 3).tolist()}
            joined = [serving.post(f"{path}/step", body) for _ in range(1 + seq % 2)]
            replies = await asyncio.gather(*joined, serving.post(f"{other}/step", noise))
            actions.append(replies[0].json["action"])
            assert replies[0].json["version"] == (12 if seq < 6 else 99)
            assert all(reply.json == replies[0].json for reply in replies[:-1])
            repeated = await serving.post(f"{path}/step", body)
            assert repeated.json == replies[0].json
            alone = {"obs": [obs.tolist()]} | ({} if carry is None else {"carry": carry})
            reply = await serving.post("/v1/policies/default/act", alone)
            carry = reply.json["carry"]
            np.testing.assert_allclose(reply.json["actions"][0], actions[-1], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(actions, expected, rtol=1e-4, atol=1e-5)
        second = await serving.start()
        reply = await serving.post(f"{second}/step", {"obs": all_obs[0].tolist()})
        np.testing.assert_allclose(reply.json["action"], expected[0], rtol=1e-4, atol=1e-5)
        assert len(serving.policies._played) == 3
        for name in (path, other, second):
            await serving.ask("DELETE", name)
        await asyncio.sleep(0.01)
        assert not serving.policies._played

    run(scenario)


SPACES: list[tuple[Any, Space, Space]] = [
    (PolicyAgent(), Dict(obs=Box(-1.0, 1.0, (2,)), action_mask=MultiBinary(5)), MultiDiscrete([2, 3])),
    (PolicyAgent(), Dict(image=Box(0, 255, (8, 8, 1), np.uint8), speed=Box(-1.0, 1.0, (2,))), Discrete(3, start=5)),
    (PolicyAgent(), Tuple([Box(-1.0, 1.0, (2,)), Discrete(4)]), Box(-2.0, 0.5, (2,), np.float64)),
    (SACAgent(), Box(-1.0, 1.0, (4,)), Box(-2.0, 0.1, (2,), np.float64)),
    (PolicyAgent(), Box(-1.0, 1.0, (4,)), Dict(move=Box(-1.0, 1.0, (2,)), fire=Discrete(2))),
    (PolicyAgent(), Discrete(6), Tuple([Discrete(2), MultiDiscrete([2, 2])])),
]


@pytest.mark.parametrize(("agent", "obs_space", "action_space"), SPACES, ids=lambda part: type(part).__name__)
def test_actions_of_all_spaces_are_allowed(agent: Any, obs_space: Space, action_space: Space) -> None:
    policy = policy_of(agent, obs_space, action_space)
    rows = [jax.tree.map(np.array, obs_space.sample(jax.random.key(seed))) for seed in range(5)]
    for seed, obs in enumerate(rows):
        if isinstance(obs, dict) and "action_mask" in obs:
            obs["action_mask"] = np.array([seed % 2, 1 - seed % 2, 0, 1, seed % 2], np.int8)

    async def play(serving: Serving, explore: bool) -> list[Any]:
        paths = [await serving.start(explore=explore) for _ in rows]
        replies = await asyncio.gather(
            *(serving.post(f"{path}/step", {"obs": as_json(obs)}) for path, obs in zip(paths, rows, strict=True))
        )
        return [typed(action_space, reply.json["action"]) for reply in replies]

    async def scenario() -> None:
        serving = Serving({"default": policy}, max_episodes=10)
        greedy, sampled = await play(serving, False), await play(serving, True)
        for obs, action in zip(rows * 2, greedy + sampled, strict=True):
            assert action_space.contains(action), action
            if isinstance(obs, dict) and "action_mask" in obs:
                assert obs["action_mask"][[action[0], 2 + action[1]]].all()
        for obs, action in zip(rows, greedy, strict=True):
            jax.tree.map(partial(np.testing.assert_allclose, rtol=1e-5, atol=1e-6), action, policy(obs))

    run(scenario)


def typed(space: Space, action: Any) -> Any:
    """Return an action that JSON has as arrays of its space."""
    match space:
        case Dict():
            return {name: typed(part, action[name]) for name, part in space.spaces.items()}
        case Tuple():
            return tuple(map(typed, space.spaces, action))
    return np.asarray(action, space.dtype)  # type: ignore[attr-defined]


LEFT, RIGHT = policy_of(seed=1), policy_of(action_space=Box(-1.0, 1.0, (2,)), seed=2)
TEAM = {"left": LEFT, "right": RIGHT}
MAPPING: dict[AgentID, str] = {"left": "left", "right": "right"}


def test_two_agents_with_two_policies_one_late_one_dead_early() -> None:
    log = ListLog()

    async def scenario() -> None:
        serving = Serving(TEAM, MAPPING, log=log)
        path = await serving.start(episode="e")
        rows = np.eye(4, dtype=np.float32)
        steps: list[dict[str, Any]] = [
            {"agents": {"left": {"obs": rows[0].tolist()}}},
            {"agents": {"left": {"obs": rows[1].tolist(), "reward": 1}, "right": {"obs": rows[2].tolist()}}},
            {"agents": {"left": {"obs": ZEROS, "reward": 2, "terminated": True}, "right": {"obs": ZEROS, "reward": 3}}},
            {"agents": {"right": {"obs": rows[3].tolist(), "reward": 4}}},
            {"agents": {"right": {"obs": rows[0].tolist(), "reward": 5}}, "truncated": True},
        ]
        answers = [(await serving.post(f"{path}/step", {"seq": seq} | step)).json for seq, step in enumerate(steps)]
        assert [sorted(answer.get("actions", [])) for answer in answers] == [
            ["left"], ["left", "right"], ["right"], ["right"], []
        ]  # fmt: skip
        assert answers[0]["actions"]["left"] == LEFT(rows[0])
        np.testing.assert_allclose(answers[1]["actions"]["right"], RIGHT(rows[2]), rtol=1e-5)
        assert answers[4] == {"seq": 4, "ended": True, "episode_return": 15.0, "episode_length": 4}
        dead = await serving.post(f"{await serving.start()}/step", {"agents": {"nobody": {"obs": ZEROS}}})
        assert dead.error == (422, "agent", "agents")
        direct = await serving.post(f"{await serving.start()}/step", {"obs": ZEROS})
        assert direct.error == (422, "unknown_field", "obs")

    run(scenario)
    lines = [
        (agent, t, action is not None, reward, *flags) for _, t, agent, _, action, reward, *flags, _, _, _ in log.lines
    ]
    assert sorted(lines) == [
        ("left", 0, True, 1.0, False, False),
        ("left", 1, True, 2.0, True, False),
        ("left", 2, False, 0.0, False, False),
        ("right", 0, True, 3.0, False, False),
        ("right", 1, True, 4.0, False, False),
        ("right", 2, True, 5.0, False, True),
        ("right", 3, False, 0.0, False, False),
    ]


def test_an_episode_may_choose_its_policies() -> None:
    async def scenario() -> None:
        serving = Serving(TEAM, MAPPING)
        path = await serving.start(policies={"one": "right", "two": "right"})
        body = {"agents": {"one": {"obs": ZEROS}, "two": {"obs": ZEROS}}}
        actions = (await serving.post(f"{path}/step", body)).json["actions"]
        assert actions["one"] == actions["two"]
        assert len(actions["one"]) == 2
        assert (await serving.post(f"{path}/step", {"agents": {"left": {"obs": ZEROS}}})).error[1] == "agent"

    run(scenario)


def test_the_log_has_what_the_simulator_did_itself_and_the_end_of_an_episode_that_it_left() -> None:
    log = ListLog()

    async def scenario() -> None:
        serving = Serving(log=log)
        path = await serving.start(episode="e")
        reply = await serving.post(f"{path}/step", {"obs": ZEROS, "action": 2, "log_prob": -0.5})
        assert reply.json["action"] == 2
        await serving.post(f"{path}/step", {"reward": 1})
        await serving.post(f"{path}/step", {"obs": [1, 0, 0, 0], "reward": 2})
        await serving.ask("DELETE", path)
        await asyncio.sleep(0.01)

    run(scenario)
    shown = [(t, None if action is None else int(action), reward, log_prob, policy)
             for _, t, _, _, action, reward, _, _, log_prob, policy, _ in log.lines]  # fmt: skip
    assert shown == [(0, 2, 3.0, -0.5, "default@12"), (1, None, 0.0, None, None)]


def test_of_agents_that_are_left_only_those_that_play_get_a_last_line() -> None:
    log = ListLog()

    async def scenario() -> None:
        serving = Serving(TEAM, MAPPING, log=log)
        path = await serving.start(episode="e")
        both = {"left": {"obs": ZEROS}, "right": {"obs": ZEROS}}
        await serving.post(f"{path}/step", {"agents": both})
        await serving.post(f"{path}/step", {"agents": both | {"left": {"obs": ZEROS, "truncated": True}}})
        await serving.ask("DELETE", path)
        await asyncio.sleep(0.01)

    run(scenario)
    lines = [(agent, t, action is not None) for _, t, agent, _, action, *_ in log.lines]
    assert lines == [
        ("left", 0, True),
        ("left", 1, False),
        ("right", 0, True),
        ("right", 1, False),
    ]


@pytest.mark.parametrize("is_noticed_early", [True, False])
def test_a_full_disk_ends_the_log_and_neither_the_answers_nor_the_exit(
    caplog: pytest.LogCaptureFixture, is_noticed_early: bool
) -> None:
    log = ListLog()

    async def scenario() -> None:
        serving = Serving(log=log)
        path = await serving.start()
        await serving.post(f"{path}/step", {"obs": ZEROS})
        log.is_full = True
        for _ in range(3 * is_noticed_early):
            assert (await serving.post(f"{path}/step", {"obs": ZEROS})).status == 200
        serving.policies.close()
        assert serving.metrics.log_failures == 1

    run(scenario)
    assert caplog.text.count("no space left") == 1


def test_requests_of_one_turn_are_one_batch_and_slow_policies_act_in_a_thread() -> None:
    async def scenario() -> None:
        serving = Serving()
        serving.policies.warm_up()
        paths = [await serving.start() for _ in range(5)]
        for _ in range(2):
            batches, rows = serving.metrics.rows.buckets()[-1][1], serving.metrics.rows.sum
            replies = await asyncio.gather(*(serving.post(f"{path}/step", {"obs": ZEROS}) for path in paths))
            assert {reply.status for reply in replies} == {200}
            assert serving.metrics.rows.buckets()[-1][1] == batches + 1
            assert serving.metrics.rows.sum == rows + 5
            serving.policies.act_in_thread()

    run(scenario)


def test_a_policy_that_takes_long_does_not_keep_the_process_alive() -> None:
    Serving().policies.act_in_thread()
    assert all(thread.daemon for thread in threading.enumerate() if thread.name == "rookery-acting")


class Slow:
    """Acts as a policy, slowly."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._policy, name)

    def act(self, *arguments: Any) -> Any:
        time.sleep(0.05)
        return self._policy.act(*arguments)


def test_while_a_slow_policy_acts_others_are_answered() -> None:
    async def scenario() -> None:
        serving = Serving({"default": Slow(policy_of())})  # type: ignore[dict-item]
        serving.policies.act_in_thread()
        path = await serving.start()
        step = asyncio.create_task(serving.post(f"{path}/step", {"obs": ZEROS}))
        await asyncio.sleep(0.01)
        other = await serving.start()
        assert not step.done()
        late = asyncio.create_task(serving.post(f"{other}/step", {"obs": ZEROS}))
        assert [(await task).status for task in (step, late)] == [200, 200]

    run(scenario)


def constant(policy: Policy, version: int) -> Policy:
    """Return a policy whose action is its version, whatever it sees."""
    leaves, treedef = jax.tree.flatten(policy.agent_state)
    zeros = [np.zeros_like(leaf) for leaf in leaves]
    biases = [index for index, leaf in enumerate(leaves) if np.shape(leaf)[-1:] == (1,)]
    for index in biases:
        zeros[index] = np.full_like(zeros[index], version)
    return policy.with_state(jax.tree.unflatten(treedef, zeros), version)


def test_reloads_at_full_speed_fail_no_request_and_mix_no_versions() -> None:
    policy = policy_of(action_space=Box(-np.inf, np.inf, (1,)))
    newest = 1
    serving = Serving({"default": constant(policy, 1)})
    serving.policies.replace({"default": constant(policy, 1)}, 1)
    serving.policies.warm_up()
    reload = Reload(serving.policies, lambda: newest, lambda step: {"default": constant(policy, step)}, serving.metrics)

    async def client(path: str, replies: list[tuple[int, Any]]) -> None:
        seq = 0
        while newest < 60 or seq < 5:
            reply = await serving.post(f"{path}/step", {"seq": seq, "obs": ZEROS})
            replies.append((reply.status, reply.json))
            seq += 1

    async def publish() -> None:
        nonlocal newest
        while newest < 60:
            newest += 1
            await asyncio.to_thread(reload.check)

    async def scenario() -> None:
        all_replies: list[list[tuple[int, Any]]] = [[] for _ in range(4)]
        paths = [await serving.start() for _ in all_replies]
        await asyncio.gather(publish(), *map(client, paths, all_replies))
        for replies in all_replies:
            assert {status for status, _ in replies} == {200}
            assert all(round(answer["action"][0]) == answer["version"] for _, answer in replies)
            versions = [answer["version"] for _, answer in replies]
            assert versions == sorted(versions)
            assert len(set(versions)) > 3
        assert serving.metrics.reloads == {"loaded": 59}

    run(scenario)


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ({"default": policy_of(obs_space=Box(-1.0, 1.0, (5,)))}, "other spaces"),
        ({"default": policy_of(GRU)}, "another agent"),
        ({"other": policy_of()}, "the policies other"),
        (RuntimeError("the file is damaged"), "damaged"),
    ],
    ids=["spaces", "agent", "names", "damage"],
)
def test_a_checkpoint_that_cannot_be_served_is_named_once_and_the_present_policy_stays(
    broken: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    def read(step: int) -> Any:
        if step == 20 and isinstance(broken, Exception):
            raise broken
        return broken if step == 20 else {"default": policy_of(seed=2)}

    serving = Serving()
    steps = [5, 12, 20, 20, 20, 21]
    reload = Reload(serving.policies, lambda: steps.pop(0), read, serving.metrics)
    versions = []
    for _ in range(6):
        reload.check()
        versions.append(serving.policies.team.version)
    assert versions == [12, 12, 12, 12, 12, 21]
    assert caplog.text.count(reason) == 1
    assert serving.metrics.reloads == {"refused": 1, "loaded": 1}


def test_a_checkpoint_is_read_again_after_growing_pauses() -> None:
    serving, reads = Serving(), []

    def read(step: int) -> Any:
        reads.append(num_looks)
        if num_looks < 250:
            raise OSError("Input/output error")
        return {"default": policy_of(seed=2)}

    reload = Reload(serving.policies, lambda: 20, read, serving.metrics)
    for num_looks in range(1, 300):  # noqa: B007
        reload.check()
    assert reads == [1, 2, 4, 8, 16, 32, 64, 128, 192, 256]
    assert serving.policies.team.version == 20
    assert serving.metrics.reloads == {"refused": 1, "loaded": 1}


def test_a_folder_that_cannot_be_listed_is_named_once(caplog: pytest.LogCaptureFixture) -> None:
    def newest() -> int:
        raise OSError("Stale file handle")

    serving = Serving()
    reload = Reload(serving.policies, newest, lambda step: {}, serving.metrics)
    for _ in range(5):
        reload.check()
    assert caplog.text.count("Stale file handle") == 1
    assert serving.metrics.reloads == {"refused": 1}


def test_parameters_that_are_not_finite_are_not_served() -> None:
    serving = Serving()
    policy = policy_of()
    nan = policy.with_state(jax.tree.map(lambda leaf: leaf * np.nan, policy.agent_state), 13)
    metrics = Metrics()
    Reload(serving.policies, lambda: 13, lambda step: {"default": nan}, metrics).check()
    assert serving.policies.team.version == 12
    assert metrics.reloads == {"refused": 1}


def test_reloading_compiles_nothing() -> None:
    policy = policy_of()
    compiled: Sequence[Any] = [program._cache_size() for program in policy._programs.values()]  # type: ignore[attr-defined]
    policy.predict(np.zeros(4, np.float32))
    before = [program._cache_size() for program in policy._programs.values()]  # type: ignore[attr-defined]
    other = policy.with_state(policy_of(seed=5).agent_state, 99)
    other.predict(np.zeros(4, np.float32))
    assert [program._cache_size() for program in other._programs.values()] == before != compiled  # type: ignore[attr-defined]
    assert other.num_steps == 99


def test_a_row_on_which_a_policy_fails_costs_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    def act_or_fail(policy: Policy, asks: Sequence[Ask], explore: bool) -> None:
        if any(ask.obs[0] for ask in asks):
            raise ValueError("planted")
        act_together(policy, asks, explore)

    monkeypatch.setattr(policy_server, "act_together", act_or_fail)

    async def scenario() -> None:
        serving = Serving()
        paths = [await serving.start() for _ in range(3)]
        steps = [
            serving.post(f"{path}/step", {"obs": [first, 0, 0, 0]})
            for path, first in zip(paths, (0, 1, 0), strict=True)
        ]
        assert [reply.status for reply in await asyncio.gather(*steps)] == [200, 500, 200]

    run(scenario)
