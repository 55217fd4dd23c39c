"""Selects device training or host training for a run; no other module makes this choice."""

import contextlib
import dataclasses
import logging

from rookery.agent import Agent
from rookery.distributed import check_memory
from rookery.envs import AutoresetMode
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.evaluators.host import EpisodeSource, HostEvaluator
from rookery.evaluators.host_population import HostPopulation, population_envs
from rookery.evaluators.measures import Measure
from rookery.evaluators.population_player import PopulationSpec
from rookery.evolution import EvoOptimizer
from rookery.learners.learner import Learner
from rookery.learners.on_policy import OnPolicyLearner
from rookery.learners.policies import PolicyLearners, Snapshots
from rookery.rollout import RolloutSource
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.groups.group import Description, EnvSpec, LocalRunners, RunnerGroup, RunnerSpec
from rookery.runners.groups.jobs import default_chunk_size
from rookery.runners.host_envs import check_one_host, clips_rewards, make_envs
from rookery.types import PyTreeDict
from rookery.workflows.config import Settings
from rookery.workflows.device_training import DeviceTraining
from rookery.workflows.evaluation import close_on_error, make_device_evaluator, make_env, make_evaluation_envs
from rookery.workflows.evolution.exchange import Exchange
from rookery.workflows.evolution.generations import REFERENCE_ENVS, DeviceGenerations, Evolution, HostGenerations
from rookery.workflows.evolution.host_hybrids import HostHybrids
from rookery.workflows.evolution.hybrids import Crew, DeviceHybrids
from rookery.workflows.host.collector import FIELDS, Collector, RoundSettings
from rookery.workflows.host.external import ORIGIN_FIELDS, SimulatorEpisodes, check_windows
from rookery.workflows.host.multi_agent_collector import MultiAgentCollector
from rookery.workflows.host.single_agent_collector import SingleAgentCollector
from rookery.workflows.host.training import HostTraining
from rookery.workflows.policies import assign_policies, check_training
from rookery.workflows.programs import Layout
from rookery.workflows.training import AgentEvaluator, Training

logger = logging.getLogger(__name__)

MIN_STEPS_OF_REQUEST = 64
"""A request to Ray takes about 5 ms."""


def make_gradient_training(
    settings: Settings, layout: Layout, learner: Learner, evaluation_episodes: int | None = None
) -> Training:
    """Make the training of a learner on the configured environment.

    If `evaluation_episodes` is given, the run is only evaluated and no host environments for training are started.
    """
    train = settings.train
    num_devices, num_envs = layout.num_shares, learner.config.num_envs
    learner.check(num_devices)
    num_rows = num_envs * learner.config.rollout_length
    check_memory(f"agent.num_envs={num_envs} with agent.rollout_length={learner.config.rollout_length}", 4 * num_rows)
    if not train.env.is_on_host:
        env = make_env(train.env, num_envs // num_devices, train.env.autoreset_mode)
        source = RolloutSource(env=env, agent=learner.agent, rollout_length=learner.config.rollout_length)
        return DeviceTraining(
            source,
            learner,
            settings.hyperparameters,
            layout,
            make_device_evaluator(train.env, learner.agent, train.evaluation_episodes),
            train.evaluation_episodes,
        )
    if train.env.has_several_agents:
        return _make_joint_training(settings, layout, learner, evaluation_episodes)
    if train.env.is_external:
        check_windows(train.env, learner)
    with close_on_error() as opened:
        envs = open_envs(train.env, num_envs, evaluation_episodes, opened)
        group = make_group(settings, learner, envs, opened)
        rounds = round_settings(settings, learner)
        collector = SingleAgentCollector(
            group, train.env, learner.agent, num_envs, learner.config.rollout_length, rounds
        )
        evaluator = _make_evaluator(train.env, learner.agent, collector, envs)
        return HostTraining(collector, learner, settings.hyperparameters, layout, evaluator, train)


def _make_joint_training(
    settings: Settings, layout: Layout, learner: Learner, evaluation_episodes: int | None
) -> Training:
    """Make the training of several policies in the same environments, with one copy of the learner for each.

    Frozen policies have none.
    """
    assert isinstance(learner, OnPolicyLearner), "checked with the config"
    train, agent, config = settings.train, learner.agent, learner.config
    with close_on_error() as opened:
        envs = open_envs(train.env, config.num_envs, evaluation_episodes, opened)
        group = make_group(settings, learner, envs, opened)
        spaces, snapshot = group.describe().spaces, train.snapshot
        assignment = assign_policies(train.env, spaces, snapshot.pool_sizes)
        check_training(assignment, snapshot, spaces)
        rounds = round_settings(settings, learner)
        collector = MultiAgentCollector(
            group, train.env, agent, config.num_envs, config.rollout_length, assignment, rounds
        )
        learners = {policy: with_num_envs(learner, collector.num_columns(policy)) for policy in assignment.trained}
        frozen = tuple(policy for policy in assignment.name_of if policy not in learners)
        pool = None
        if snapshot.of is not None:
            pool = Snapshots(snapshot.of, tuple(assignment.members_of(snapshot.into)), snapshot.every)
        joint = PolicyLearners(agent=agent, config=config, learners=PyTreeDict(learners), frozen=frozen, snapshots=pool)
        joint.check(layout.num_shares)
        evaluator = _make_evaluator(train.env, agent, collector, envs)
        return HostTraining(collector, joint, settings.hyperparameters, layout, evaluator, train)


def with_num_envs(learner: OnPolicyLearner, num_envs: int) -> OnPolicyLearner:
    """Return the learner for another number of environments."""
    return learner.replace(config=dataclasses.replace(learner.config, num_envs=num_envs))


def make_generations(
    settings: Settings, layout: Layout, evolution: Evolution, evaluation_episodes: int | None = None
) -> Training:
    """Make the evolution of an agent on the configured environment; see `make_gradient_training`."""
    train, num_episodes = settings.train, settings.train.evaluation_episodes
    agent, config = evolution.agent, evolution.config
    num_jobs = config.population_size * config.num_episodes
    check_memory(
        f"agent.population_size={config.population_size} with agent.num_episodes={config.num_episodes}", 4 * num_jobs
    )
    check_replays(settings, evolution.optimizer, "agent.reevaluate")
    if not train.env.is_on_host:
        reference_env = None
        if config.fixed_obs_statistics:
            reference_env = make_env(train.env, REFERENCE_ENVS, AutoresetMode.NORMAL)
        evaluator = make_device_evaluator(train.env, agent, num_episodes)
        return DeviceGenerations(evolution, layout, evaluator, num_episodes, reference_env)
    spec = PopulationSpec(train.env, agent, config.explore, config.tracks_obs, evolution.measures, evolution.optimizer)
    with close_on_error() as opened:
        players = open_players(
            settings, spec, config.population_size, config.num_episodes, config.num_lanes, evaluation_episodes, opened
        )
        return HostGenerations(evolution, layout, *players, num_episodes)


def make_hybrid(
    settings: Settings,
    layout: Layout,
    exchange: Exchange,
    crew: Crew,
    num_lanes: int,
    evaluation_episodes: int | None = None,
) -> Training:
    """Make the training of a population and a learner on the configured environment; see `make_gradient_training`."""
    train, num_episodes = settings.train, settings.train.evaluation_episodes
    agent, optimizer = exchange.learner.agent, exchange.optimizer
    check_replays(settings, optimizer, "agent.strategy.reevaluate")
    # Lanes and devices fill their columns of the buffer unevenly: twice the rows of the run.
    max_rows = 2 * settings.max_timesteps
    if not train.env.is_on_host:
        evaluator = make_device_evaluator(train.env, agent, num_episodes)
        max_rows += 2 * crew.size * crew.num_episodes * evaluator.max_episode_steps  # and one generation
        exchange = exchange.with_max_rows(max_rows)
        return DeviceHybrids(exchange, crew, settings.hyperparameters, layout, num_lanes, evaluator, num_episodes)
    measures = tuple(map(Measure.parse, optimizer.measures))
    spec = PopulationSpec(
        train.env, agent, False, agent.normalize_obs, measures, explorers=crew.explorers, keeps_rows=True
    )
    max_rows += 2 * crew.size * crew.num_episodes * (train.env.episode_length or 0)
    exchange, clips = exchange.with_max_rows(max_rows), clips_rewards(train.env)
    with close_on_error() as opened:
        players = open_players(settings, spec, crew.size, crew.num_episodes, num_lanes, evaluation_episodes, opened)
        return HostHybrids(exchange, crew, settings.hyperparameters, layout, *players, num_episodes, clips)


def check_generations(settings: Settings) -> None:
    """Raise if the episodes of individuals cannot be played on the configured environment."""
    env, max_staleness = settings.train.env, settings.train.max_staleness
    if env.is_external:
        raise InvalidInputError(
            f"{env.name} begins its episodes itself, so no episode can be asked of an individual: train it with "
            "a method that learns from steps, such as ppo or sac."
        )
    if env.has_several_agents:
        raise several_agents_error(settings)
    if max_staleness > 0:
        raise InvalidInputError(
            f"max_staleness={max_staleness} is for methods that learn from batches: a generation cannot start "
            "before the previous one has finished."
        )


def check_replays(settings: Settings, optimizer: EvoOptimizer, key: str) -> None:
    """Raise if elites, as the setting `key` says, are to play again on host environments."""
    env = settings.train.env
    if env.is_on_host and optimizer.num_replays:
        raise InvalidInputError(
            f"{key}={optimizer.num_replays} is for environments on the device: {env.name} is on the host. Leave it "
            "at 0."
        )


def open_players(
    settings: Settings,
    spec: PopulationSpec,
    num_individuals: int,
    num_episodes: int,
    num_lanes: int,
    evaluation_episodes: int | None,
    opened: contextlib.ExitStack,
) -> tuple[HostPopulation, HostEvaluator]:
    """Make what plays the episodes of individuals in host environments, and what plays evaluations.

    A runner is asked for some individuals at a time; for all, if it works in this process.
    """
    train, ray, chunk_size = settings.train, settings.ray, num_individuals
    if train.num_env_runners > 0:
        num_at_once = -(-num_lanes // num_episodes)
        group_size = 1 if spec.optimizer is None else spec.optimizer.group_size
        chunk_size = default_chunk_size(num_individuals, train.num_env_runners, num_at_once, group_size)
    num_envs = min(num_lanes, chunk_size * num_episodes)
    envs = open_envs(train.env, num_envs, evaluation_episodes, opened)
    group = make_population_group(settings, num_envs, envs, opened)
    player = HostPopulation(group, spec, chunk_size, ray.min_env_runners, ray.wait_timeout, num_envs=num_envs)
    source = evaluation_source(group, player)
    return player, HostEvaluator(train.env, spec.agent, num_envs, opened=envs, source=source)


def make_population_group(
    settings: Settings, num_envs: int, envs: BaseEnv | None, opened: contextlib.ExitStack
) -> RunnerGroup:
    """Make the runners of a population, with `num_envs` environments each; see `make_group`."""
    # Populations have no fragments, whose length is the second argument.
    spec = RunnerSpec(population_envs(settings.train.env, num_envs), 1, settings.train.seed)
    return _make_runners(settings, spec, envs, opened)


def open_envs(
    env: EnvConfig, num_envs: int, evaluation_episodes: int | None, opened: contextlib.ExitStack
) -> BaseEnv | None:
    """Make the evaluation environments of a run that is only evaluated; None for a run that trains."""
    check_one_host(env)
    if evaluation_episodes is None:
        return None
    envs = make_envs(env, num_envs) if env.is_external else make_evaluation_envs(env, num_envs, evaluation_episodes)
    opened.callback(envs.close)
    return envs


def make_group(settings: Settings, learner: Learner, envs: BaseEnv | None, opened: contextlib.ExitStack) -> RunnerGroup:
    """Make the runners; if `envs` is given, it describes the environments and none are started for that."""
    train, config = settings.train, learner.config
    num_runners = train.num_env_runners
    fields = (*FIELDS, "episode") if train.env.has_several_agents else FIELDS
    is_external = train.env.is_external
    spec = RunnerSpec(
        EnvSpec(train.env, config.num_envs // max(num_runners, 1)),
        config.rollout_length,
        train.seed,
        fields=(*fields, *ORIGIN_FIELDS) if is_external else fields,
        clips_rewards=clips_rewards(train.env),
        max_age=learner.max_staleness if is_external else None,
        needs_log_prob=learner.needs_log_prob,
    )
    num_steps = spec.rollout_length * spec.envs.num_envs
    if num_runners > 0 and num_steps < MIN_STEPS_OF_REQUEST:
        logger.warning(
            "A runner is asked for %d steps at a time, and a request to Ray takes as long as many fast steps: raise "
            "agent.rollout_length, or agent.num_envs per runner.",
            num_steps,
        )
    return _make_runners(settings, spec, envs, opened)


def evaluation_source(group: RunnerGroup, source: EpisodeSource) -> EpisodeSource | None:
    """Return what plays the evaluations of a run: runners elsewhere, or nobody else."""
    return None if group.works_in_receive else source


def _make_evaluator(env: EnvConfig, agent: Agent, collector: Collector, envs: BaseEnv | None) -> AgentEvaluator:
    """Make what plays the evaluations of a learner; external simulators play those themselves."""
    if env.is_external:
        return SimulatorEpisodes(env, collector.take_evaluated)
    source = evaluation_source(collector.group, collector)
    return HostEvaluator(env, agent, collector.num_envs, collector.assignment, opened=envs, source=source)


def _make_runners(
    settings: Settings, spec: RunnerSpec, envs: BaseEnv | None, opened: contextlib.ExitStack
) -> RunnerGroup:
    """Make runners on Ray if there are some; a run that is only evaluated, with `envs`, needs none."""
    num_runners = settings.train.num_env_runners
    if envs is not None or num_runners == 0:
        group: RunnerGroup = LocalRunners(spec, max(num_runners, 1), None if envs is None else Description.of(envs))
    else:
        from rookery.runners.ray.group import RayRunners  # imports ray, which is an extra

        group = RayRunners(spec, num_runners, settings.ray)
    opened.callback(group.close)
    return group


def check_divides(num_runners: int, num_envs: int) -> None:
    """Raise unless runners can have the same number of environments."""
    if num_runners > 0 and num_envs % num_runners:
        divisors = [number for number in range(1, num_envs + 1) if num_envs % number == 0]
        below = max((number for number in divisors if number < num_runners), default=1)
        above = min((number for number in divisors if number > num_runners), default=num_envs)
        nearest = " or ".join(map(str, sorted({below, above})))
        raise InvalidInputError(
            f"num_env_runners={num_runners} does not divide agent.num_envs={num_envs}: use {nearest} runners, "
            f"or agent.num_envs={num_runners * max(1, round(num_envs / num_runners))}."
        )


def check_learner(settings: Settings, learner: Learner) -> None:
    """Raise if the learner does not fit the environment or its runners; nothing is started yet."""
    train = settings.train
    if train.env.has_several_agents and not isinstance(learner, OnPolicyLearner):
        raise several_agents_error(settings)
    check_divides(train.num_env_runners, learner.config.num_envs)
    if learner.max_staleness is not None and train.max_staleness > learner.max_staleness:
        raise InvalidInputError(
            f"max_staleness={train.max_staleness} is too much for this method, whose limit is {learner.max_staleness}: "
            "use agent=impala, which corrects for it."
        )
    if train.max_staleness > 0 and isinstance(learner, OnPolicyLearner) and learner.actor_lag > 1:
        raise InvalidInputError(
            f"agent.actor_lag={learner.actor_lag} and max_staleness={train.max_staleness} both let actors lag: use one."
        )


def round_settings(settings: Settings, learner: Learner) -> RoundSettings:
    """Return how the fragments of runners become batches."""
    train, ray = settings.train, settings.ray
    num_steps = learner.config.num_envs * learner.config.rollout_length
    timetable = train.timetable
    most_unsaved = timetable.checkpoint_interval + timetable.record_interval + learner.warmup_steps
    num_unsaved = 2 * (most_unsaved // num_steps + train.max_staleness + 2)
    return RoundSettings(train.max_staleness, train.min_ready, ray.min_env_runners, ray.wait_timeout, num_unsaved)


def several_agents_error(settings: Settings) -> InvalidInputError:
    """Return the error for a single-agent method on a multi-agent environment."""
    return InvalidInputError(
        f"{settings.train.env.name} has several agents, and {settings.agent_name} trains one: use another agent, "
        "such as ppo."
    )
