"""The log of a server: every served step, once."""

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from rookery.offline.episode_log import EpisodeLog, read_log
from rookery.policy import Policy
from rookery.runners.envs.base_env import SINGLE_AGENT, End
from rookery.serving import policy_server
from rookery.serving.client import Client
from rookery.serving.policy_server import Ask, act_together
from tests.asgi import ACTIONS, OBS, Serving, policy_of
from tests.served_policy import SPACES, served_policy


def test_every_served_step_is_read_back_once(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path, {SINGLE_AGENT: SPACES})
    draw = np.random.default_rng(0)
    with served_policy(log=log) as server:
        client = Client(server.url)
        open_episodes = [client.start(explore=True) for _ in range(3)]
        played: dict[str, tuple[list, list, list]] = {episode.id: ([], [], []) for episode in open_episodes}
        for t in range(5):  # they interleave
            for episode in open_episodes:
                obs = draw.normal(size=4).astype(np.float32)
                observations, actions, rewards = played[episode.id]
                observations.append(obs)
                if t == 2:
                    actions.append(1)
                    episode.log(obs, 1, log_prob=-0.5)
                else:
                    actions.append(episode.act(obs))
                rewards.append(0.5 * t)
                episode.reward(0.5 * t)
        last = draw.normal(size=4).astype(np.float32)
        open_episodes[0].end(last)
        open_episodes[1].end(last, truncated=True)
        open_episodes[2].leave()
    log.close()
    read = read_log(tmp_path)
    episodes = list(read.episodes[SINGLE_AGENT])
    assert [episode.end for episode in episodes] == [End.TERMINATED, End.TRUNCATED, End.TRUNCATED]
    assert [len(episode) for episode in episodes] == [5, 5, 4], "the last action of the one that was left led nowhere"
    for episode, (observations, actions, rewards) in zip(episodes, played.values(), strict=True):
        length = len(episode)
        np.testing.assert_array_equal(episode.observations[:length], observations[:length])
        np.testing.assert_array_equal(episode.actions, actions[:length])
        np.testing.assert_array_equal(episode.rewards, rewards[:length])
    np.testing.assert_array_equal(episodes[0].observations[-1], last)


def test_ids_that_are_used_again_parts_of_rewards_and_a_stop_cost_no_step(tmp_path: Path) -> None:
    teams = dict.fromkeys(("x", "y"), (OBS, ACTIONS))
    log, zeros = EpisodeLog(tmp_path, teams), [0.0] * 4

    async def scenario() -> None:
        policies, mapping = {"default": policy_of()}, dict.fromkeys(teams, "default")
        serving = Serving(policies, mapping, log=log)
        for number in range(2):
            path = await serving.start(episode="a", info={"level": number})
            for agents in (
                {"x": {"obs": zeros}, "y": {"obs": zeros}},
                {"x": {"obs": zeros, "reward": 1.0}, "y": {"reward": 2.0}},
                {"x": {"obs": zeros, "reward": 1.0}, "y": {"obs": zeros, "reward": 3.0}},
            ):
                assert (await serving.post(f"{path}/step", {"agents": agents})).status == 200
            if number == 0:
                assert (await serving.post(f"{path}/step", {"agents": {}, "truncated": True})).status == 200
        refused = await serving.post("/v1/episodes", {"policies": {"z": "default"}})
        assert refused.error == (422, "policies", "policies.z")
        serving.policies.close()

    asyncio.run(asyncio.wait_for(scenario(), 30.0))
    log.close()
    lines = [json.loads(line) for path in tmp_path.glob("*.jsonl") for line in path.read_text().splitlines()]
    infos = [(line["t"], line["agent"], line["info"]["level"]) for line in lines if "info" in line]
    assert sorted(infos, key=str) == [(0, "x", 0), (0, "x", 1), (0, "y", 0), (0, "y", 1)]
    episodes = read_log(tmp_path).episodes
    assert [list(episode.rewards) for episode in episodes["y"]] == [[5.0, 0.0], [5.0]]
    assert [list(episode.rewards) for episode in episodes["x"]] == [[1.0, 1.0, 0.0], [1.0, 1.0]]


@pytest.mark.parametrize("ending", ["terminated", "left", "stopped"])
@pytest.mark.parametrize("num_after", [0, 2])
def test_a_fault_of_the_policy_splits_an_episode_of_the_log_and_costs_none_of_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_after: int, ending: str
) -> None:
    def act_or_fail(policy: Policy, asks: Sequence[Ask], explore: bool) -> None:
        act_together(policy, asks, explore)
        for ask in asks:
            ask.is_faulty = bool(ask.obs[0] == 1.0)

    monkeypatch.setattr(policy_server, "act_together", act_or_fail)
    log = EpisodeLog(tmp_path, {SINGLE_AGENT: (OBS, ACTIONS)})

    async def scenario() -> None:
        serving = Serving(log=log)
        path = await serving.start()
        for t in range(3 + num_after):
            body = {"obs": [float(t == 2), 0.0, 0.0, 0.0], "reward": float(t)}
            assert (await serving.post(f"{path}/step", body)).status == (500 if t == 2 else 200)
        if ending == "terminated":
            last = {"obs": [0.5, 0.0, 0.0, 0.0], "reward": 9.0, "terminated": True}
            assert (await serving.post(f"{path}/step", last)).status == 200
        elif ending == "left":
            await serving.ask("DELETE", path)
        await asyncio.sleep(0.01)
        serving.policies.close()

    asyncio.run(asyncio.wait_for(scenario(), 30.0))
    log.close()
    read = read_log(tmp_path)
    before, *after = read.episodes[SINGLE_AGENT]
    assert list(before.rewards) == [1.0, 2.0]
    assert before.observations[-1].tolist() == [1.0, 0.0, 0.0, 0.0]
    assert before.end is End.TRUNCATED
    is_whole = ending == "terminated"
    rewards, end = ([4.0, 9.0], End.TERMINATED) if is_whole else ([4.0], End.TRUNCATED)
    assert [(list(episode.rewards), episode.end) for episode in after] == [(rewards, end)] * (num_after > 0)
    assert read.counts == Counter(gaps=num_after > 0), "no step is there twice"
