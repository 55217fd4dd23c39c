"""PettingZoo environments, parallel and in turns (AEC), as multi-agent dict environments.

PettingZoo itself is imported only to make an env by its name. The wrappers are dict envs without inheriting from
`MultiAgentDictEnv`, so that other processes can import them without JAX.
"""

import importlib
import importlib.util
import inspect
import pkgutil
import re
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping
from types import ModuleType
from typing import Any

import gymnasium
import numpy as np

from rookery.errors import InvalidInputError, MissingExtraError, missing_extra, unknown_name
from rookery.runners.envs.base_env import ALL, COMMON
from rookery.trust import import_named

ACTION_MASK = "action_mask"
"""The name of masks in PettingZoo's observations and infos, which is also that of Rookery's agents."""
OBSERVATION = "observation"
"""The name of the observation next to the mask, in PettingZoo."""
FAMILIES = ("mpe2", "pettingzoo.atari", "pettingzoo.butterfly", "pettingzoo.classic", "pettingzoo.sisl")
"""The packages that PettingZoo's own environments are in."""

AgentID = Hashable
Step = tuple[dict, dict, dict, dict, dict]


class PettingZooEnv(ABC):
    """The common part of both kinds: spaces, a time limit, and masks, which agents read from the observation.

    A mask that the env puts into its infos is added to the observation. To find out, the env is reset once when
    it is wrapped. `max_episode_steps` is a time limit in calls of `step`, in addition to the env's own.
    """

    def __init__(self, env: Any, max_episode_steps: int | None = None) -> None:
        if not getattr(env, "possible_agents", None):
            raise InvalidInputError(f"{env} has no possible_agents: name there all agents that may ever appear.")
        self.env = env
        self.metadata = getattr(env, "metadata", {})
        self.max_episode_steps = max_episode_steps
        self.possible_agents = tuple(env.possible_agents)
        self.observation_spaces = {agent: env.observation_space(agent) for agent in self.possible_agents}
        self.action_spaces = {agent: env.action_space(agent) for agent in self.possible_agents}
        self._num_steps = 0
        self._mask_spaces: dict[AgentID, gymnasium.spaces.Box] = {}
        _, infos = self.reset(seed=0)
        if any(ACTION_MASK in info for info in infos.values()):
            self._add_masks()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[dict, dict]:
        self._num_steps = 0
        return self._observed(*self._reset(seed, options))

    def step(self, actions: dict[AgentID, Any]) -> Step:
        obs, rewards, terminateds, truncateds, infos = self._step(actions)
        self._num_steps += 1
        is_over = not self.env.agents
        is_late = self.max_episode_steps is not None and self._num_steps >= self.max_episode_steps
        is_truncated = any(truncateds.values()) and not any(terminateds.values())
        terminateds[ALL] = is_over and not is_truncated
        truncateds[ALL] = is_late or (is_over and is_truncated)
        obs, infos = self._observed(obs, infos)
        return obs, rewards, terminateds, truncateds, infos

    def render(self) -> np.ndarray | None:
        return self.env.render()

    def close(self) -> None:
        self.env.close()

    def __str__(self) -> str:
        return str(self.env)

    @abstractmethod
    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[dict, dict]:
        """Begin an episode; return observations and infos."""

    @abstractmethod
    def _step(self, actions: dict[AgentID, Any]) -> Step:
        """Act; return flags without an entry for the episode."""

    def _observed(self, obs: dict, infos: dict) -> tuple[dict, dict]:
        """Keep the entries of observed agents, and add masks to observations."""
        obs = {agent: self._masked(agent, value, infos) for agent, value in obs.items() if agent in self.action_spaces}
        kept = {agent: info for agent, info in infos.items() if agent in obs}
        return obs, kept | ({COMMON: infos["common"]} if "common" in infos else {})

    def _masked(self, agent: AgentID, obs: Any, infos: dict) -> Any:
        if agent not in self._mask_spaces:
            return obs
        mask = infos.get(agent, {}).get(ACTION_MASK)
        if mask is None:
            mask = self._mask_spaces[agent].high
        entries = obs if isinstance(obs, Mapping) else {OBSERVATION: obs}
        return {**entries, ACTION_MASK: np.asarray(mask, np.int8)}

    def _add_masks(self) -> None:
        for agent, space in self.observation_spaces.items():
            num_choices = _num_choices(self.action_spaces[agent])
            entries = space.spaces if isinstance(space, gymnasium.spaces.Dict) else {OBSERVATION: space}
            if num_choices and ACTION_MASK not in entries:
                self._mask_spaces[agent] = gymnasium.spaces.Box(0, 1, (num_choices,), np.int8)
                entries = {**entries, ACTION_MASK: self._mask_spaces[agent]}
                self.observation_spaces[agent] = gymnasium.spaces.Dict(entries)


class ParallelDictEnv(PettingZooEnv):
    """A PettingZoo `ParallelEnv`: all agents act at once."""

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[dict, dict]:
        return self.env.reset(seed=seed, options=options)

    def _step(self, actions: dict[AgentID, Any]) -> Step:
        obs, rewards, terminations, truncations, infos = self.env.step(actions)
        return obs, dict(rewards), dict(terminations), dict(truncations), infos


class AECDictEnv(PettingZooEnv):
    """A PettingZoo `AECEnv`: agents act in turns, and the next one is observed.

    A reward is reported in the step that it comes from, whoever acted. An agent that ended is observed a last time. The
    step with `None` that PettingZoo requires follows when it is its turn.
    """

    def _reset(self, seed: int | None, options: dict[str, Any] | None) -> tuple[dict, dict]:
        self.env.reset(seed=seed, options=options)
        obs, _, _, _, infos = self._turns()
        return obs, infos

    def _step(self, actions: dict[AgentID, Any]) -> Step:
        agent = self.env.agent_selection
        if agent not in actions:
            raise InvalidInputError(f"it is the turn of {agent!r}, but there are actions for {list(actions)} only.")
        self.env.step(actions[agent])
        return self._turns()

    def _turns(self) -> Step:
        """Go on to an agent that can act."""
        env = self.env
        obs: dict[AgentID, Any] = {}
        rewards = {agent: reward for agent, reward in env.rewards.items() if reward != 0}
        terminateds: dict[AgentID, bool] = {}
        truncateds: dict[AgentID, bool] = {}
        infos: dict[AgentID, Any] = {}
        while env.agents:
            agent = env.agent_selection
            obs[agent], _, terminateds[agent], truncateds[agent], infos[agent] = env.last()
            if not (terminateds[agent] or truncateds[agent]):
                break
            env.step(None)
        return obs, rewards, terminateds, truncateds, infos


def is_pettingzoo(env: object) -> bool:
    """Return whether `env` is a PettingZoo env of either kind."""
    return _inherits(env, "AECEnv") or _inherits(env, "ParallelEnv")


def as_dict_env(env: Any, max_episode_steps: int | None = None) -> PettingZooEnv:
    """Wrap a PettingZoo env of either kind."""
    return (AECDictEnv if _inherits(env, "AECEnv") else ParallelDictEnv)(env, max_episode_steps)


def pettingzoo_names() -> list[str]:
    """Return the names of PettingZoo's own environments: `mpe2.simple_spread_v3`, `classic.tictactoe_v3`."""
    names = []
    for family in FAMILIES:
        spec = importlib.util.find_spec(family)
        modules = pkgutil.iter_modules(spec.submodule_search_locations) if spec is not None else ()
        names += [f"{family}.{module.name}" for module in modules if re.search(r"_v\d+$", module.name)]
    return [name.removeprefix("pettingzoo.") for name in names]


def pettingzoo_factory(
    name: str, episode_length: int | None, render: bool, kwargs: dict[str, Any], longest_episode: int | None = None
) -> Callable[[int], PettingZooEnv]:
    """Return a function that makes the env of a module, in the parallel form if it has both.

    `episode_length` replaces the time limit of an env that takes one (`max_cycles`), and is added to others. Without
    it, `longest_episode` is added.
    """
    module = _module(name)
    make_fn = getattr(module, "parallel_env", None) or getattr(module, "env", None)
    if make_fn is None:
        raise InvalidInputError(
            f"pettingzoo/{name}: the module {module.__name__} has neither parallel_env nor env; expected the module of "
            "a PettingZoo environment."
        )
    arguments = {**kwargs, "render_mode": "rgb_array"} if render else dict(kwargs)
    time_limit = episode_length or longest_episode
    takes_time_limit = "max_cycles" in inspect.signature(getattr(module, "raw_env", make_fn)).parameters
    if episode_length is not None and takes_time_limit:
        arguments["max_cycles"], time_limit = episode_length, None

    def make_env(index: int) -> PettingZooEnv:
        return as_dict_env(make_fn(**arguments), time_limit)

    return make_env


def _inherits(env: object, class_name: str) -> bool:
    names = {(cls.__module__.partition(".")[0], cls.__name__) for cls in type(env).__mro__}
    return ("pettingzoo", class_name) in names


def _module(name: str) -> ModuleType:
    """Import the module of an env: one of PettingZoo's families, or any module of that form."""
    is_their_own = name in pettingzoo_names()
    for full_name in (f"pettingzoo.{name}", name):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # PettingZoo prefers ids, but MPE has none
                if is_their_own:
                    return importlib.import_module(full_name)
                return import_named(full_name, f"pettingzoo/{name}")
        except ModuleNotFoundError as error:
            missing = str(error.name)
            if not f"{full_name}.".startswith(f"{missing}."):
                raise MissingExtraError(f"pettingzoo/{name} needs {missing}, which is not installed.") from error
    if missing == "mpe2":
        raise missing_extra("mpe2", "pettingzoo")
    raise unknown_name("environment", f"pettingzoo/{name}", [f"pettingzoo/{known}" for known in pettingzoo_names()])


def _num_choices(action_space: gymnasium.Space) -> int:
    """Return the length of a mask of these actions; 0 if they cannot be masked."""
    match action_space:
        case gymnasium.spaces.Discrete():
            return int(action_space.n)
        case gymnasium.spaces.MultiDiscrete():
            return int(action_space.nvec.sum())
    return 0
