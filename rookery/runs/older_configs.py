"""Configs of runs that older versions wrote: keys that have another name now."""

from collections.abc import Mapping
from typing import Any


def with_present_keys(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config with the keys of this version."""
    present = dict(config)
    env = present.get("env")
    if isinstance(env, Mapping) and isinstance(env.get("runner"), Mapping) and "overlap" in env["runner"]:
        runner = dict(env["runner"])
        has_overlap, agent = bool(runner.pop("overlap")), present.get("agent")
        lags = isinstance(agent, Mapping) and (agent.get("actor_lag") or 1) != 1
        present["max_staleness"] = int(has_overlap and not lags)  # of two lags, the one of the method stays
        present["env"] = {**env, "runner": runner}
    return present
