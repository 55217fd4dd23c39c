"""Population-based training of neural networks (Jaderberg et al., 2017).

Departures from the paper: all members finish a round at the same time, so a result does not depend on their speed. The
fitness is the return of greedy episodes that start alike for all members. Numbers are perturbed on their scale: by a
factor that is multiplied or divided, so perturbations cancel out.
"""

import contextlib
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax

from rookery.configuration import check_settings, plain, setting, to_mapping
from rookery.distributed import POPULATION_AXIS, bytes_of_tree, check_memory, format_bytes
from rookery.errors import InvalidInputError, RookeryError
from rookery.hyperparameters import declaration_of
from rookery.registry import workflow_class
from rookery.search import Search, SearchHyperparameters, SearchSpace, search_class
from rookery.search.searches import RandomSearch, Truncation
from rookery.trust import name_of
from rookery.workflows.config import Settings
from rookery.workflows.population import PopulationTraining, Rounds
from rookery.workflows.training import LearnerTraining, OnDevice, Training
from rookery.workflows.workflow import Workflow

logger = logging.getLogger(__name__)

MUCH_MEMORY = 2**30
"""The bytes from which replay buffers are worth a warning."""


@dataclass(frozen=True)
class PBTConfig:
    """The settings of population-based training."""

    method: str = setting("ppo", help="the method of the members: any but pbt")
    member: Mapping[str, Any] = setting(
        {}, help="settings and hyper-parameters of the members: agent.member.num_envs=16"
    )
    space: Mapping[str, Any] = setting(
        {}, help="hyper-parameters to search, {learning_rate: {low: 1e-5, high: 3e-2, scale: log}}; {}: the method's"
    )
    search: str | type = setting(
        "truncation",
        help="truncation: PBT; cso: losers of pairs move to winners; none: random search; or your own as module:Class",
    )
    population_size: int = setting(16, low=2, high=2**16, help="members, over all devices")
    top: float = setting(0.2, low=0.0, high=1.0, help="truncation: share of the members that others take over from")
    bottom: float = setting(0.2, low=0.0, high=1.0, help="truncation: share of the members that take over")
    iterations_per_round: int | None = setting(
        None, low=1, help="iterations of a member in a round; null: 16 on-policy, 1024 off-policy, 4 generations"
    )
    warmup_rounds: int = setting(0, low=0, help="first rounds after which nobody takes over")
    num_episodes: int = setting(8, low=1, help="greedy episodes of a member; their mean return is its fitness")
    num_lanes: int = setting(16, low=1, help="greedy episodes in parallel on a device")
    members_side_by_side: bool | None = setting(
        None, help="true: vectorize members with vmap; false: loop over them; null: loop on a CPU"
    )

    def __post_init__(self) -> None:
        if isinstance(self.search, type):
            object.__setattr__(self, "search", name_of(self.search))
        check_settings(self)

    def num_members(self, share: float) -> int:
        """Return the number of members in a share of the population, at least one."""
        return max(1, round(share * self.population_size))


class PBTWorkflow(Workflow):
    """Population-based training: members of any method train with hyper-parameters of their own."""

    agent_name = "pbt"
    config_class = PBTConfig
    hyperparameters_class = SearchHyperparameters
    mesh_axis = POPULATION_AXIS
    vectorize_seeds = False

    @classmethod
    def check_config(cls, config: Any, agent_name: str | None = None) -> Settings:
        """Check a config and return its settings, in which the members have all of theirs and a space."""
        settings = super().check_config(config, agent_name)
        own: PBTConfig = settings.method
        if settings.train.env.is_on_host:
            raise InvalidInputError(
                f"agent={settings.agent_name} trains its members in one compiled program, and "
                f"{settings.train.env.name} is on the host: choose a device environment, such as classic/cartpole "
                "(`rookery list envs`)."
            )
        method = workflow_class(own.method)
        if issubclass(method, PBTWorkflow):
            raise InvalidInputError(f"agent.method={own.method}: members cannot be populations; choose another method.")
        member = member_settings(settings)
        space = own.space or method.search_space
        if not space:
            raise InvalidInputError(
                f"agent.space is empty, and agent.method={own.method} has no default: name what to search, such as "
                "'agent.space.learning_rate={low: 1e-5, high: 3e-2, scale: log}'."
            )
        complete = to_mapping(member.method) | to_mapping(member.hyperparameters)
        space = {name: plain(given, f"agent.space.{name}") for name, given in space.items()}
        settings = replace(settings, method=replace(own, member=complete, space=space))
        make_search(settings, member)
        return settings

    def make_training(self) -> Training:
        settings, config = self.settings, self.config
        member = member_settings(settings)
        method = workflow_class(config.method)
        with errors_of_members():
            workflow = method(member, 1, self.layout.enable_jit, mesh=self.layout.mesh)
        assert isinstance(workflow.training, OnDevice), "the environments are on the device"
        check_replay(workflow.training, config)
        return PopulationTraining(
            workflow.training,
            member.hyperparameters,
            make_search(settings, member),
            settings.hyperparameters,
            rounds_of(config, method),
            self.layout,
            settings.train.evaluation_episodes,
        )


def member_settings(settings: Settings) -> Settings:
    """Return the settings of one member, whose env steps are its share of those of the run."""
    config = settings.method
    steps, budget = (
        -(-number // config.population_size) for number in (settings.train.total_timesteps, settings.max_timesteps)
    )
    train = replace(settings.train, total_timesteps=budget, num_seeds=1, run_dir=None, recorders=(), init_from=None)
    with errors_of_members():
        agent = {"name": config.method, **config.member}
        member = workflow_class(config.method).check_config({"agent": agent, **to_mapping(train)}, config.method)
    return replace(member, budget=budget, train=replace(member.train, total_timesteps=steps))


def make_search(settings: Settings, member: Settings) -> Search:
    """Make the search that the settings describe."""
    config = settings.method
    space, kind = SearchSpace.of(config.space, member.hyperparameters), search_class(config.search)
    fixed = [name for name in space.names if not declaration_of(type(member.hyperparameters), name).schedule]
    if fixed and kind is not RandomSearch:
        raise InvalidInputError(
            f"agent.space.{fixed[0]}: {fixed[0]} is used once, at the start, so a later change has no effect: leave it "
            "out, or use agent.search=none."
        )
    if kind is Truncation:
        return Truncation(
            space, config.population_size, config.num_members(config.top), config.num_members(config.bottom)
        )
    return kind(space, config.population_size)


def check_replay(member: Training, config: PBTConfig) -> None:
    """Say how many bytes the replay buffers of all members need; raise if there is less memory."""
    if not isinstance(member, LearnerTraining) or not member.learner.has_replay:
        return
    state, size, capacity = member.learner_shape, config.population_size, config.member["buffer_capacity"]
    num_bytes = size * (bytes_of_tree(state) - bytes_of_tree(state.without_replay()))
    what = f"agent.population_size={size} replay buffers of agent.member.buffer_capacity={capacity}"
    check_memory(what, num_bytes)
    if num_bytes >= MUCH_MEMORY:
        logger.warning("%s take %s of memory.", what, format_bytes(num_bytes))


def rounds_of(config: PBTConfig, method: type[Workflow]) -> Rounds:
    """Return how the members of a method train."""
    side_by_side = config.members_side_by_side
    return Rounds(
        iterations_per_round=config.iterations_per_round or method.iterations_per_round,
        warmup_rounds=config.warmup_rounds,
        num_episodes=config.num_episodes,
        num_lanes=config.num_lanes,
        members_side_by_side=jax.default_backend() != "cpu" if side_by_side is None else side_by_side,
    )


@contextlib.contextmanager
def errors_of_members() -> Iterator[None]:
    """Let errors about `agent.NAME` of a member name the key `agent.member.NAME`, and say whose steps are few."""
    try:
        yield
    except RookeryError as error:
        text = re.sub(r"\bagent(?=[.:])", "agent.member", str(error))
        raise type(error)(re.sub(r"\btotal_timesteps=\d+", r"\g<0> of a member", text)) from error
