"""`init_from`: parameters and observation statistics of another run, with which a new run begins."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from rookery.agent import AgentState
from rookery.distributed import SAME
from rookery.errors import InvalidInputError
from rookery.runs.checkpoint import Checkpoint, CheckpointError, Checkpoints
from rookery.runs.directory import RunDirectory
from rookery.runs.load_agent import load_agent
from rookery.runs.policy_files import FOLDER, policy_names, read_description
from rookery.trust import check_origin
from rookery.types import PyTreeDict
from rookery.workflows.policies import Spaces, differing_spaces
from rookery.workflows.saved.policies import by_policy
from rookery.workflows.training import Training, TrainingState

BEST = "best"
Origin = str | Mapping[str, str]


class Source(NamedTuple):
    """A policy of a checkpoint of another run."""

    run: str
    step: str | None
    policy: str | None

    @classmethod
    def parse(cls, text: str) -> "Source":
        """Read `RUN`, `RUN@STEP`, `RUN@best`, `RUN:POLICY` or `RUN@STEP:POLICY`."""
        match = re.fullmatch(rf"(.+?)(?:@(\d+|{BEST}))?(?::([^/:@]+))?", text)
        if match is None or Path(text).is_dir():
            return cls(text, None, None)
        return cls(*match.groups())

    def read(self, template: AgentState, spaces: Spaces, text: str) -> Any:
        """Read the agent state for these spaces; that of the first seed if there are several."""
        run = RunDirectory.open(self.run)
        checkpoints = Checkpoints(run.checkpoints_path)
        step = checkpoints.best_step() if self.step == BEST else self.step
        if self.step == BEST and step is None:
            raise InvalidInputError(f"init_from={text}: {self.run} has no best checkpoint, it made no evaluation yet.")
        self._check_spaces(checkpoints.open(None if step is None else int(step), part=f"{FOLDER}/"), spaces, text)
        num_seeds = run.config.get("num_seeds", 1)
        wanted: Any = template if self.policy is None else {self.policy: template}
        try:
            loaded: Any = load_agent(run, wanted, num_seeds, None if step is None else int(step)).agent_states[0]
        except CheckpointError as error:
            raise InvalidInputError(f"init_from={text} does not fit this run: {error}") from error
        return loaded if self.policy is None else loaded[self.policy]

    def _check_spaces(self, checkpoint: Checkpoint, spaces: Spaces, text: str) -> None:
        """Raise if the policy was trained in other spaces; older checkpoints do not say it."""
        for name in policy_names(checkpoint):
            if name.policy != (self.policy or "policy"):
                continue
            description = read_description(checkpoint.path, name.stem)
            checkpoint.check_unchanged()
            if differing := differing_spaces((description.obs_space, description.action_space), spaces):
                what, theirs, ours = differing
                raise InvalidInputError(
                    f"init_from={text} does not fit this run: it has {what} in {theirs}, and this run in {ours}."
                )


def with_origin(training: Training, state: TrainingState, origin: Origin) -> TrainingState:
    """Return the first state of a run with the agent of another run; all seeds begin with it.

    Policies that a mapping does not name stay as they are.
    """
    check_origin(f"init_from={origin}")
    templates: Any = training.agent_shape()
    agent: Any
    policies = list(templates) if isinstance(templates, PyTreeDict) else None
    if isinstance(origin, Mapping):
        unknown = sorted(set(origin) - set(policies or ()))
        if unknown:
            has = f"the policies {', '.join(policies)}" if policies else "one policy without a name"
            raise InvalidInputError(f"init_from={dict(origin)}: this run has no policy {unknown[0]!r}, but {has}.")
        spaces = {name: of_policy for name, _, of_policy in by_policy(templates, training.spaces)}
        agent = PyTreeDict(
            {name: Source.parse(text).read(templates[name], spaces[name], text) for name, text in origin.items()}
        )
    elif policies is not None:
        raise InvalidInputError(
            f"init_from={origin}: this run has several policies, so name each: init_from={{{policies[0]}: RUN:NAME}}."
        )
    else:
        agent = Source.parse(origin).read(templates, training.spaces, origin)
    if (num_seeds := training.layout.num_seeds) > 1:
        agent = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (num_seeds, *np.shape(leaf))), agent)
    return training.with_agent(state, training.layout.place(agent, SAME))
