"""A policy that plays against copies of its past learns a game of two players."""

import functools
import sys
from types import ModuleType
from typing import Any

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.agent import AgentState
from rookery.sample_batch import SampleBatch
from rookery.types import PyTreeDict
from rookery.workflows.workflow import Workflow

pytestmark = pytest.mark.usefixtures("fast_programs")

NAME = "subtraction_game_v0"
MOST, STARTS = 3, range(7, 13)


class SubtractionGame:
    """Two players take one to three of some sticks in turn; who takes the last one wins."""

    possible_agents = ("player_0", "player_1")

    def observation_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Box(0.0, 1.0, (STARTS.stop,))

    def action_space(self, agent: str) -> gymnasium.Space:
        return gymnasium.spaces.Discrete(MOST)

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        random = np.random.default_rng(seed)
        self.agents = list(self.possible_agents)
        self.num_left, self.turn = int(random.choice(STARTS)), int(random.integers(2))
        return {self.agents[self.turn]: observed(self.num_left)}, {}

    def step(self, actions: dict[str, Any]) -> tuple[dict, dict, dict, dict, dict]:
        player, other = self.possible_agents[self.turn], self.possible_agents[1 - self.turn]
        self.num_left = max(self.num_left - 1 - int(actions[player]), 0)
        self.turn = 1 - self.turn
        is_over = self.num_left == 0
        seen = self.possible_agents if is_over else (other,)
        if is_over:
            self.agents = []
        rewards = {player: 1.0, other: -1.0} if is_over else dict.fromkeys(self.possible_agents, 0.0)
        never = dict.fromkeys(self.possible_agents, False)
        return dict.fromkeys(seen, observed(self.num_left)), rewards, dict.fromkeys(never, is_over), never, {}

    def close(self) -> None:
        pass


def observed(num_left: int) -> np.ndarray:
    return np.eye(STARTS.stop, dtype=np.float32)[num_left]


def wins_against_random(workflow: Workflow, agent_state: AgentState) -> float:
    """Return the exact probability that the greedy policy beats a player who takes any number, over all starts."""
    batch = SampleBatch(obs=jnp.eye(STARTS.stop), extras=PyTreeDict(policy_extras=PyTreeDict()))
    actions = np.asarray(workflow.agent.evaluate_actions(agent_state, batch, workflow.make_key())[0])

    @functools.cache
    def chance(num_left: int, is_my_turn: bool) -> float:
        if num_left <= 0:
            return float(not is_my_turn)
        taken = [int(actions[num_left])] if is_my_turn else range(MOST)
        return float(np.mean([chance(num_left - 1 - action, not is_my_turn) for action in taken]))

    return float(np.mean([chance(start, is_first) for start in STARTS for is_first in (True, False)]))


@pytest.fixture(autouse=True)
def subtraction_game(monkeypatch: pytest.MonkeyPatch) -> None:
    module: Any = ModuleType(NAME)
    module.parallel_env = module.raw_env = SubtractionGame
    monkeypatch.setitem(sys.modules, NAME, module)


def test_a_policy_learns_a_game_against_its_past(train) -> None:
    trained = train(
        "agent=ppo",
        f"env=pettingzoo/{NAME}",
        "env.policies={player_*: [main, past]}",
        "env.frozen=[past]",
        "snapshot={of: main, into: past, every: 4, keep: 2}",
        "agent.num_envs=16",
        "agent.rollout_length=32",
        "agent.learning_rate=3e-3",
        "agent.entropy_coefficient=0.01",
        "total_timesteps=12_000",
    )
    workflow, agents = trained.workflow, trained.state.agent_state
    begun = workflow.init(workflow.make_key()).agent_state
    assert wins_against_random(workflow, begun.main) <= 0.7
    assert wins_against_random(workflow, agents.main) >= 0.85  # perfect play wins 0.97
    assert set(agents) == {"main", "past_0", "past_1"}
