"""A researcher with games of PettingZoo: two policies, one of them frozen, and snapshots of the past."""

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

COMPARE = """
import jax
import numpy as np
import rookery


def is_same(run, policy, other_run, other_policy):
    one, other = rookery.load(run, policy=policy), rookery.load(other_run, policy=other_policy)
    return all(map(np.array_equal, jax.tree.leaves(one.agent_state), jax.tree.leaves(other.agent_state)))


print("speaker is the same:", is_same("run", "speaker_0", "second", "speaker_0"))
print("listener is the same:", is_same("run", "listener_0", "second", "listener_0"))
"""

TIC_TAC_TOE = [
    "env=pettingzoo/classic.tictactoe_v3",
    "env.policies={player_*: [main, past]}",
    "env.frozen=[past]",
    "snapshot={of: main, into: past, every: 1, keep: 2}",
]

PLAY_AGAINST_THE_PAST = """
import rookery
from pettingzoo.classic import tictactoe_v3

players = {"player_1": rookery.load("game", policy="main"), "player_2": rookery.load("game", policy="past_0")}
env = tictactoe_v3.env()
env.reset(seed=0)
num_moves = 0
for player in env.agent_iter():
    obs, _, terminated, truncated, _ = env.last()
    is_over = terminated or truncated
    env.step(None if is_over else players[player].predict(obs)[0])
    num_moves += not is_over
print(num_moves, "legal moves")
"""


def test_two_policies_are_trained_and_loaded_and_one_goes_on_with_the_other_frozen(folder: Any) -> None:
    folder.rookery("train", GAME, "env.policies=per_agent", *SMALL, "run_dir=run")
    shown = folder.rookery("evaluate", "run", "--episodes", "2")
    assert "speaker_0" in shown
    assert "listener_0" in shown
    assert "25 steps" in folder.python(PLAY)
    origin = "init_from={speaker_0: run:speaker_0, listener_0: run:listener_0}"
    folder.rookery("train", GAME, "env.policies=per_agent", "env.frozen=[speaker_0]", *SMALL, origin, "run_dir=second")
    shown = folder.python(COMPARE)
    assert "speaker is the same: True" in shown
    assert "listener is the same: False" in shown


def test_a_policy_plays_its_past_and_both_are_loaded(folder: Any) -> None:
    pytest.importorskip("pettingzoo.classic.tictactoe_v3")
    folder.rookery("train", *TIC_TAC_TOE, *SMALL, "run_dir=game")
    moves = folder.python(PLAY_AGAINST_THE_PAST).split()[0]
    assert 5 <= int(moves) <= 9  # fewer would be an illegal move, which ends the game
