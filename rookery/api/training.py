"""Training in one call."""

import os
from collections.abc import Mapping
from typing import Any

from rookery.api.run import Run, train_to_the_end
from rookery.configs import compose, split_values, with_values
from rookery.registry import agent_name, build_workflow
from rookery.runners.envs.own import name_own_env
from rookery.workflows.hooks import Hooks
from rookery.workflows.workflow import Workflow


def train(
    agent: str | type[Workflow],
    env: Any,
    *,
    total_timesteps: int | None = None,
    seed: int = 0,
    num_seeds: int = 1,
    run_dir: str | os.PathLike[str] | None = None,
    on_record: Hooks | None = None,
    config: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Run:
    """Train an agent on an environment, as `rookery train` does, and return the run.

    `agent` is the name of a method, `module:Class` or a workflow class. `env` is the name of an environment, or an
    environment itself: a class, a function or an object, of Gymnasium, PettingZoo or Rookery, single or vectorized.
    `settings` are keys of the command line: `learning_rate=1e-3` is `agent.learning_rate`, `devices=2` is `devices`;
    `network` may be the class of an own encoder. Keys with dots are given by `config`, as in
    `config={"env.episode_length": 200, "ray.address": "auto"}`. `on_record` is called after every record. Files are
    written only to `run_dir`.
    """
    name = env if isinstance(env, str) else name_own_env(env)
    values = {"seed": seed, "num_seeds": num_seeds, "run_dir": None if run_dir is None else os.fspath(run_dir)}
    if total_timesteps is not None:
        values["total_timesteps"] = total_timesteps
    values, ray = split_values(values | settings | dict(config or {}))
    composed = with_values(compose([f"agent='{agent_name(agent)}'", f"env={name}"]), values)
    workflow = build_workflow(composed, ray=ray)
    return train_to_the_end(
        workflow, lambda hooks: workflow.learn(workflow.init(workflow.make_key()), hooks), on_record
    )
