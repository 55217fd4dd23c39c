"""Loading the agent of a run: the leaves of its state in a checkpoint, without environments and replay buffers."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax

from rookery.agent import AgentState
from rookery.runs.checkpoint import Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.types import PyTreeDict, index_tree


class LoadedAgent(NamedTuple):
    """The agent of a run at one of its checkpoints; its leaves are NumPy arrays."""

    agent_states: list[AgentState]
    """One per seed; each is by policy if the template is."""
    env_steps: int
    """The number of env steps after which the checkpoint was saved."""


def load_agent(
    run: RunDirectory,
    template: AgentState | Mapping[str, AgentState],
    num_seeds: int = 1,
    step: int | None = None,
    best_individual: bool = False,
) -> LoadedAgent:
    """Load the agent of a run from the checkpoint at `step`, by default the last.

    `template` has the shapes of the agent state of one seed: what `jax.eval_shape` returns for `agent.init`, or a
    mapping of these by policy. `best_individual` takes the parameters of the fittest individual of an evolution.
    """
    checkpoint = Checkpoints(run.checkpoints_path).open(step)
    learner = "[0]" if checkpoint.format_version == 1 else "[0].learner"
    if num_seeds > 1:
        template = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct((num_seeds, *leaf.shape), leaf.dtype), template)
    agent_state: Any
    if isinstance(template, Mapping):
        frozen = {policy: f"{learner}.frozen[{policy!r}]" for policy in template}
        paths = {
            policy: path if checkpoint.has(path) else f"{learner}.policies[{policy!r}].agent_state"
            for policy, path in frozen.items()
        }
        parts = checkpoint.read({path: template[policy] for policy, path in paths.items()})
        agent_state = PyTreeDict({policy: parts[path] for policy, path in paths.items()})
    else:
        center, fittest = f"{learner}.agent_state", f"{learner}.evo_state.best_params"
        parts = checkpoint.read({center: template} | ({fittest: template.params} if best_individual else {}))
        agent_state = parts[center].replace(params=parts[fittest]) if best_individual else parts[center]
    agent_states = [agent_state] if num_seeds == 1 else [index_tree(agent_state, seed) for seed in range(num_seeds)]
    return LoadedAgent(agent_states, checkpoint.step)
