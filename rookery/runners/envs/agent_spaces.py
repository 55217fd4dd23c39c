"""The spaces of one agent or several, from and to JSON."""

from collections.abc import Mapping
from typing import Any

from rookery.errors import InvalidInputError
from rookery.runners.envs.base_env import SINGLE_AGENT, AgentID
from rookery.spaces import Space, from_json, to_json

AgentSpaces = Mapping[AgentID, tuple[Space, Space]]
"""The observation space and the action space of each agent; `SINGLE_AGENT` if there is one."""
EXPECTED = 'expected {"observation": SPACE, "action": SPACE}, or {"agents": {NAME: {the same}, ...}}'


def spaces_by_agent(spaces: AgentSpaces) -> dict[AgentID, Any]:
    """Describe the spaces of each agent."""
    return {
        agent: {"observation": to_json(obs_space), "action": to_json(action_space)}
        for agent, (obs_space, action_space) in spaces.items()
    }


def agent_spaces_to_json(spaces: AgentSpaces) -> dict[str, Any]:
    """Describe spaces by dicts, lists, numbers and strings."""
    described = spaces_by_agent(spaces)
    return described[SINGLE_AGENT] if set(described) == {SINGLE_AGENT} else {"agents": described}


def agent_spaces_from_json(data: Any, where: str) -> AgentSpaces:
    """Make the spaces that `agent_spaces_to_json` described; `where` names the data in an error."""
    if isinstance(data, Mapping) and set(data) == {"agents"} and isinstance(data["agents"], Mapping) and data["agents"]:
        return {agent: _pair_of(part, f"{where}, agent {agent!r}") for agent, part in data["agents"].items()}
    return {SINGLE_AGENT: _pair_of(data, where)}


def _pair_of(data: Any, where: str) -> tuple[Space, Space]:
    if not isinstance(data, Mapping) or set(data) != {"observation", "action"}:
        raise InvalidInputError(f"{where}: {data!r:.80} describes no spaces: {EXPECTED}.")
    try:
        return from_json(data["observation"]), from_json(data["action"])
    except InvalidInputError as error:
        raise InvalidInputError(f"{where}: {error}") from None
