"""A researcher with a game of PettingZoo and one policy for each player."""

from typing import Any

import pytest

pytest.importorskip("mpe2")

GAME = "env=pettingzoo/mpe2.simple_speaker_listener_v4"
SMALL = [
    "agent.num_envs=2",
    "agent.rollout_length=25",
    "agent.num_minibatches=1",
    "agent.network.hidden_sizes=[8]",
    "total_timesteps=100",
    "evaluation.num_episodes=2",
]

PLAY = """
import rookery
from mpe2 import simple_speaker_listener_v4

policies = {name: rookery.load("run", policy=name) for name in ("speaker_0", "listener_0")}
env = simple_speaker_listener_v4.parallel_env()
obs, _ = env.reset(seed=0)
num_steps = 0
while env.agents:
    obs, _, _, _, _ = env.step({agent: policies[agent].predict(obs[agent])[0] for agent in env.agents})
    num_steps += 1
print(num_steps, "steps")
"""


def test_two_policies_are_trained_and_one_is_loaded_into_a_bare_loop(folder: Any) -> None:
    folder.rookery("train", GAME, "env.policies=per_agent", *SMALL, "run_dir=run")
    shown = folder.rookery("evaluate", "run", "--episodes", "2")
    assert "speaker_0" in shown
    assert "listener_0" in shown
    assert "25 steps" in folder.python(PLAY)
    # One player goes on from its run, the other starts new.
    origin = "init_from={speaker_0: RUN:speaker_0}".replace("RUN", str(folder.path / "run"))
    folder.rookery("train", GAME, "env.policies=per_agent", *SMALL, origin, "run_dir=second")
    # Frozen policies and snapshots of a policy belong here.
