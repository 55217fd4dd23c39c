"""The policies of checkpoints without policy files, which older versions wrote: read with the workflow of the run."""

from rookery.policy import Policy
from rookery.runs.directory import RunDirectory
from rookery.runs.load_agent import load_agent
from rookery.workflows.evaluation import Team
from rookery.workflows.saved.policies import by_policy
from rookery.workflows.workflow import Workflow


def read_older_policies(
    workflow: Workflow, run: RunDirectory, step: int, best_individual: bool = False
) -> dict[int, Team]:
    """Read all policies of the checkpoint at `step`: by seed and by name; empty if it has no best individual."""
    train, training = workflow.settings.train, workflow.training
    if best_individual and not training.has_best:
        return {}
    loaded = load_agent(run, training.agent_shape(), train.num_seeds, step, best_individual)
    return {
        seed: {
            name or "policy": Policy(training.agent, state, *spaces, loaded.env_steps)
            for name, state, spaces in by_policy(agent_state, training.spaces)
        }
        for seed, agent_state in zip(train.seeds, loaded.agent_states, strict=True)
    }
