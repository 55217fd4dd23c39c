"""Small environments and agents for tests of the runner, whose numbers tell where they come from."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np

from rookery.agent import Agent, AgentState, Carry
from rookery.runners.envs.base_env import ALL, SINGLE_AGENT, Actions, AgentID, BaseEnv, End, EnvOutputs
from rookery.runners.envs.multi_agent import MultiAgentBaseEnv, MultiAgentDictEnv
from rookery.runners.envs.vector_base_env import VectorBaseEnv
from rookery.runners.envs.vector_env import VectorEnv
from rookery.runners.faults import Failed, FaultKind, Phase
from rookery.runners.runner import EnvRunner
from rookery.runners.sampling import RunnerConfig, Sample
from rookery.runners.transports.local import LocalTransport
from rookery.runners.transports.transport import EnvTransport
from rookery.sample_batch import SampleBatch
from rookery.spaces import Box, Discrete, Shape, Space
from rookery.types import Key, PyTreeDict, pytree_field

NUMBER = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float32)


class ParityAgent(Agent):
    """Acts on the parity of the first number it sees, and notes that number: whatever else happens, so it acts."""

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(params=jnp.zeros(()))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        number = sample_batch.obs[..., 0]
        return number.astype(jnp.int32) % 2, PyTreeDict(seen=number)

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)


class SummingAgent(ParityAgent):
    """Remembers the sum of the numbers that it saw in the episode before this one, and notes what it remembers."""

    def initial_carry(self, batch_shape: Shape = ()) -> Carry:
        return jnp.zeros(batch_shape)

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        extras, number = sample_batch.extras.policy_extras, sample_batch.obs[..., 0]
        memory = jnp.where(extras.episode_start == 1, 0.0, extras.carry)
        return number.astype(jnp.int32) % 2, PyTreeDict(carry=memory + number, memory=memory)


class ConstantAgent(Agent):
    """Always does the same."""

    action: tuple[float, ...] = pytree_field(static=True)

    def init(self, obs_space: Space, action_space: Space, key: Key) -> AgentState:
        return AgentState(params=jnp.zeros(()))

    def compute_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        num_rows = jax.tree.leaves(sample_batch.obs)[0].shape[0]
        return jnp.tile(jnp.array(self.action, jnp.float32), (num_rows, 1)), PyTreeDict()

    def evaluate_actions(self, agent_state: AgentState, sample_batch: SampleBatch, key: Key) -> tuple[Any, PyTreeDict]:
        return self.compute_actions(agent_state, sample_batch, key)


@dataclass
class Moment:
    """What a `ScriptedEnv` says at once: a number for each agent that is observed, rewards, and who ends."""

    obs: dict[AgentID, float] = field(default_factory=dict)
    rewards: dict[AgentID, Any] = field(default_factory=dict)
    terminated: Collection[AgentID] = ()
    truncated: Collection[AgentID] = ()
    infos: dict[AgentID, Any] = field(default_factory=dict)


Script = Sequence[Moment]
"""A reset and the steps that follow."""


class ScriptedEnv(MultiAgentDictEnv):
    """Several agents whose episodes are written down: always the same, or a function of the number of resets before."""

    def __init__(self, script: Script | Callable[[int], Script], agents: Sequence[AgentID] = ("a", "b")) -> None:
        self.possible_agents = list(agents)
        self.observation_spaces = dict.fromkeys(agents, NUMBER)
        self.action_spaces = dict.fromkeys(agents, gymnasium.spaces.Discrete(2))
        self._script_fn = script if callable(script) else lambda episode: script
        self.seeds: list[int | None] = []
        self.received: list[dict[AgentID, Any]] = []

    def reset(self, *, seed: int | None = None, options: dict | None = None) -> tuple[dict, dict]:
        self._moments = iter(self._script_fn(len(self.seeds)))
        self.seeds.append(seed)
        first = next(self._moments)
        return _shown(first), first.infos

    def step(self, actions: dict[AgentID, Any]) -> tuple[dict, dict, dict, dict, dict]:
        self.received.append(actions)
        moment = next(self._moments)
        flags = [{ALL: False} | dict.fromkeys(agents, True) for agents in (moment.terminated, moment.truncated)]
        return _shown(moment), moment.rewards, *flags, moment.infos


def _shown(moment: Moment) -> dict[AgentID, np.ndarray]:
    return {agent: np.array([number], np.float32) for agent, number in moment.obs.items()}


def everyone(agents: Sequence[AgentID], length: int, truncates: bool = False) -> Script:
    """All agents act at every step: they see the number of the step, and each reward is 1."""
    steps = [Moment(dict.fromkeys(agents, t), dict.fromkeys(agents, 1.0)) for t in range(length + 1)]
    steps[0].rewards = {}
    if truncates:
        steps[-1].truncated = [ALL]
    else:
        steps[-1].terminated = [ALL]
    return steps


class StaggeredEnvs(BaseEnv):
    """Counting envs that answer a few at a time and in any order, or with `rng=None` all at once and in order.

    An observation is the env, the step and the seed modulo 1,000. Env i has episodes of `lengths[i]` steps; it raises
    once, at step `fails_at[i]` of its first episode. Breaking the rules of `BaseEnv` is an assertion error.
    """

    def __init__(
        self,
        lengths: Sequence[int],
        rng: np.random.Generator | None = None,
        fails_at: Mapping[int, int] | None = None,
        is_external: bool = False,
    ) -> None:
        self.num_envs = len(lengths)
        self.name = "staggered"
        self.is_external = is_external
        self._lengths = lengths
        self._rng = rng
        self._fails_at = dict(fails_at or {})
        self._times = [0] * self.num_envs
        self._seeds: list[int | None] = [None] * self.num_envs
        self._asked: dict[int, Phase] = dict.fromkeys(range(self.num_envs), Phase.RESET)
        self._can_act: set[int] = set()
        self._was_polled = False
        self.received: list[tuple[int, int]] = []

    @property
    def spaces(self) -> Mapping[AgentID, tuple[Space, Space]]:
        return {SINGLE_AGENT: (Box(-np.inf, np.inf, (3,)), Discrete(2))}

    def poll(self, timeout: float | None = None) -> EnvOutputs:
        self._was_polled = True
        asked = list(self._asked)
        if self._rng is None:
            asked.sort()
        elif asked:
            least = 0 if timeout == 0 else 1
            asked = self._rng.permutation(asked)[: self._rng.integers(least, len(asked) + 1)].tolist()
        rows = [(env, self._asked.pop(env)) for env in asked]
        failed = {}
        for env, phase in rows:
            if phase is Phase.STEP and self._fails_at.get(env) == self._times[env]:
                del self._fails_at[env]
                failed[env] = Failed(FaultKind.RAISED, Phase.STEP, "ValueError('bad leg')")
                continue
            self._times[env] = 0 if phase is Phase.RESET else self._times[env] + 1
        rows = [row for row in rows if row[0] not in failed]
        over = [env for env, phase in rows if phase is Phase.STEP and self._times[env] >= self._lengths[env]]
        self._can_act.update(env for env, _ in rows if env not in over)
        envs = np.array([env for env, _ in rows], np.int64)
        return EnvOutputs(
            envs=envs,
            agents=None,
            obs=np.array([self._obs(env) for env in envs], np.float32).reshape(-1, 3),
            rewards=np.array([self._times[env] for env in envs], np.float64),
            ends=np.where(np.isin(envs, over), End.TERMINATED, End.RUNNING).astype(np.uint8),
            is_reset=np.array([phase is Phase.RESET for _, phase in rows], np.bool_),
            resets=[env for env, phase in rows if phase is Phase.RESET],
            over=over,
            stepped=[env for env, phase in rows if phase is Phase.STEP],
            failed=failed,
        )

    def _obs(self, env: int) -> tuple[int, int, int]:
        return env, self._times[env], (self._seeds[env] or 0) % 1000

    def send_actions(self, actions: Actions) -> None:
        assert list(actions.envs) == sorted(set(actions.envs.tolist())), "envs must be ascending"
        assert len(actions.actions) == len(actions.envs)
        for env, action in zip(actions.envs.tolist(), actions.actions, strict=True):
            assert env in self._can_act, f"env {env} cannot act"
            self._can_act.remove(env)
            self._asked[env] = Phase.STEP
            self.received.append((env, int(action)))

    def try_reset(self, env: int, seed: int | None) -> None:
        assert env not in self._can_act, f"env {env} is reset in the midst of an episode"
        assert not self._was_polled or env not in self._asked, f"env {env} is reset before it has answered"
        self._seeds[env] = seed
        self._asked[env] = Phase.RESET

    def try_restart(self, env: int, seed: int | None) -> None:
        self.try_reset(env, seed)


class FakeTime:
    """A clock that passes only while somebody sleeps, or by `tick` seconds whenever somebody looks at it."""

    def __init__(self, tick: float = 0.0) -> None:
        self.now = 0.0
        self.tick = tick
        self.naps: list[float] = []

    def clock(self) -> float:
        self.now += self.tick
        return self.now

    def sleep(self, seconds: float) -> None:
        self.naps.append(seconds)
        self.now += seconds


def vectorized(make_env: Callable[[int], gymnasium.Env], num_envs: int = 1, **options: Any) -> VectorBaseEnv:
    """Gymnasium envs for a runner."""
    return VectorBaseEnv(VectorEnv.wrap(make_env=make_env, num_envs=num_envs, **options), "test")


def in_dicts(*envs: MultiAgentDictEnv, group: EnvTransport | None = None) -> MultiAgentBaseEnv:
    """Dict envs for a runner; one that fails goes on as the same object."""
    return MultiAgentBaseEnv(group or LocalTransport([lambda env=env: env for env in envs]), "test")


def make_runner(
    base_env: BaseEnv, policies: Mapping[str, Agent] | Agent | None = None, mapping: Any = None, **settings: Any
) -> EnvRunner:
    """A runner that is ready to sample; settings of the config and of the runner may be mixed."""
    policies = ParityAgent() if policies is None else policies
    config = RunnerConfig(**{name: settings.pop(name) for name in list(settings) if name in _CONFIG_NAMES})
    runner = EnvRunner(base_env, policies, mapping, config, **settings)
    agents = {"default": policies} if isinstance(policies, Agent) else policies
    agent_of = next(iter(base_env.spaces))
    for name, agent in agents.items():
        runner.set_agent_states({name: agent.init(*runner.spaces_of(name, agent_of), jax.random.key(0))})
    return runner


_CONFIG_NAMES = frozenset(RunnerConfig.__dataclass_fields__)


@dataclass(frozen=True)
class Row:
    """One transition of a sample, as numbers."""

    column: int
    episode: int
    t: int
    obs: float
    successor: float
    reward: float
    termination: float
    truncation: float
    done: float
    end: End


def rows_of(sample: Sample, policy: str = "default") -> list[Row]:
    """The rows that hold something, column by column; observations by their first number."""
    if policy not in sample.batch.batches:
        return []
    batch = sample.batch.batches[policy]
    extras = batch.extras.env_extras
    return [
        Row(
            column=column,
            episode=int(extras.episode[t, column]),
            t=int(extras.t[t, column]),
            obs=float(batch.obs[t, column].ravel()[0]),
            successor=float(extras.ori_obs[t, column].ravel()[0]),
            reward=float(batch.rewards[t, column]),
            termination=float(extras.termination[t, column]),
            truncation=float(extras.truncation[t, column]),
            done=float(batch.dones[t, column]),
            end=End(int(extras.end[t, column])),
        )
        for column in range(extras.t.shape[1])
        for t in np.flatnonzero(extras.autoreset[:, column] == 0)
    ]


def times_of(sample: Sample, policy: str = "default") -> list[int]:
    """The env step of each row, column by column."""
    return [row.t for row in rows_of(sample, policy)]


def count_rows(samples: Sequence[Sample]) -> Iterator[tuple[int, float, int]]:
    """Name every row of some samples by its episode, what was seen, and its step."""
    for sample in samples:
        for policy in sample.batch.batches:
            for row in rows_of(sample, policy):
                yield row.episode, row.obs, row.t
