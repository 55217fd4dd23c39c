"""A researcher with an evolution strategy of their own, in one file."""

from typing import Any

STRATEGY = '''
import jax
import jax.numpy as jnp
from rookery.evolution import ECState, EvoOptimizer
from rookery.workflows.evolution.workflow import ECWorkflow


class HillClimberState(ECState):
    place: dict


class HillClimber(EvoOptimizer):
    def init(self, params, key):
        return HillClimberState(**self.common_fields(params, key), place=params)

    def sample(self, state, key):
        def make(noise):
            return jax.tree.map(lambda place, noise: place + 0.1 * noise, state.place, noise)

        return self.individuals(make, state.place, key)

    def update(self, state, fitness, key):
        return state.replace(place=self.individual(state.asked, jnp.argmax(fitness)))

    def center(self, state):
        return state.place


class HillClimberWorkflow(ECWorkflow):
    """Moves to the best individual."""

    optimizer_class = HillClimber
'''

SMALL = [
    "env=classic/cartpole",
    "env.episode_length=20",
    "agent.population_size=8",
    "agent.network.hidden_sizes=[4]",
    "num_seeds=16",
    "total_timesteps=600",
    "evaluation.num_episodes=2",
]


def test_an_own_strategy_is_trained_compared_resumed_and_evaluated(folder: Any) -> None:
    folder.write("climber.py", STRATEGY)
    name = "agent=climber:HillClimberWorkflow"
    assert "name: 'climber:HillClimberWorkflow'" in folder.rookery("train", name, "--show-config")
    assert "16 seeds" in folder.rookery("train", name, *SMALL, "run_dir=own")
    assert "16 seeds" in folder.rookery("train", "agent=openes", *SMALL, "run_dir=openes")
    folder.rookery("report", "own", "openes", "-o", "compared.html")
    page = (folder.path / "compared.html").read_text()
    assert "climber:HillClimberWorkflow" in page
    assert "openes" in page

    assert "add --trust" in folder.rookery("resume", "own", "total_timesteps=1200", exit_code=2)
    assert "resumed at" in folder.rookery("resume", "own", name, "total_timesteps=1200")
    assert "16 seeds" in folder.rookery("evaluate", "own", name, "--episodes", "2")
