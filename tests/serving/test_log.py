"""The log of a server: every served step, once."""

import asyncio
from pathlib import Path

import numpy as np

from rookery.offline.episode_log import EpisodeLog, read_log
from rookery.runners.envs.base_env import SINGLE_AGENT, End
from rookery.serving.client import Client
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
            path = await serving.start(episode="a")
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
    episodes = read_log(tmp_path).episodes
    assert [list(episode.rewards) for episode in episodes["y"]] == [[5.0, 0.0], [5.0]]
    assert [list(episode.rewards) for episode in episodes["x"]] == [[1.0, 1.0, 0.0], [1.0, 1.0]]
