"""Selects device training or host training for a run; no other module makes this choice."""

import contextlib
import dataclasses

from rookery.distributed import check_memory
from rookery.envs import AutoresetMode
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError
from rookery.evaluators.host import HostEvaluator
from rookery.evaluators.host_population import HostPopulation
from rookery.learners.learner import Learner
from rookery.learners.on_policy import OnPolicyLearner
from rookery.learners.policies import PolicyLearners, Snapshots
from rookery.rollout import RolloutSource
from rookery.runners.callbacks import FaultNotices
from rookery.runners.envs.base_env import BaseEnv
from rookery.runners.group import Description, EnvSpec, LocalRunners, RunnerGroup, RunnerSpec
from rookery.runners.host_envs import check_one_host
from rookery.types import PyTreeDict
from rookery.workflows.collector import SingleAgentCollector
from rookery.workflows.config import Settings, TrainConfig
from rookery.workflows.device_training import DeviceTraining
from rookery.workflows.evaluation import close_on_error, make_device_evaluator, make_env, make_evaluation_envs
from rookery.workflows.generations import REFERENCE_ENVS, DeviceGenerations, Evolution, HostGenerations
from rookery.workflows.host_training import HostTraining
from rookery.workflows.multi_agent_collector import MultiAgentCollector
from rookery.workflows.policies import assign_policies, check_training
from rookery.workflows.programs import Layout
from rookery.workflows.training import Training


def make_gradient_training(
    settings: Settings, layout: Layout, learner: Learner, evaluation_episodes: int | None = None
) -> Training:
    """Make the training of a learner on the configured environment.

    If `evaluation_episodes` is given, the run is only evaluated and no host environments for training are started.
    """
    train = settings.train
    num_devices, num_envs = layout.mesh.size, learner.config.num_envs
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
    with close_on_error() as opened:
        envs = open_envs(train.env, num_envs, evaluation_episodes, opened)
        group = make_group(train, num_envs, learner.config.rollout_length, envs, opened)
        collector = SingleAgentCollector(group, train.env, learner.agent, num_envs, learner.config.rollout_length)
        evaluator = HostEvaluator(train.env, learner.agent, num_envs, opened=envs)
        return HostTraining(collector, learner, settings.hyperparameters, layout, evaluator, train)


def _make_joint_training(
    settings: Settings, layout: Layout, learner: Learner, evaluation_episodes: int | None
) -> Training:
    """Make the training of several policies in the same environments, with one copy of the learner for each.

    Frozen policies have none.
    """
    if not isinstance(learner, OnPolicyLearner):
        raise several_agents_error(settings)
    train, agent, config = settings.train, learner.agent, learner.config
    with close_on_error() as opened:
        envs = open_envs(train.env, config.num_envs, evaluation_episodes, opened)
        group = make_group(train, config.num_envs, config.rollout_length, envs, opened)
        spaces, snapshot = group.describe().spaces, train.snapshot
        assignment = assign_policies(train.env, spaces, snapshot.pool_sizes)
        check_training(assignment, snapshot, spaces)
        collector = MultiAgentCollector(group, train.env, agent, config.num_envs, config.rollout_length, assignment)
        learners = {policy: with_num_envs(learner, collector.num_columns(policy)) for policy in assignment.trained}
        frozen = tuple(policy for policy in assignment.name_of if policy not in learners)
        pool = None
        if snapshot.of is not None:
            pool = Snapshots(snapshot.of, tuple(assignment.members_of(snapshot.into)), snapshot.every)
        joint = PolicyLearners(agent=agent, config=config, learners=PyTreeDict(learners), frozen=frozen, snapshots=pool)
        joint.check(layout.mesh.size)
        evaluator = HostEvaluator(train.env, agent, config.num_envs, assignment, opened=envs)
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
    if train.env.has_several_agents:
        raise several_agents_error(settings)
    if not train.env.is_on_host:
        reference_env = None
        if config.fixed_obs_statistics:
            reference_env = make_env(train.env, REFERENCE_ENVS, AutoresetMode.NORMAL)
        evaluator = make_device_evaluator(train.env, agent, num_episodes)
        return DeviceGenerations(evolution, layout, evaluator, num_episodes, reference_env)
    num_slots = min(config.num_lanes, config.population_size * config.num_episodes)
    with close_on_error() as opened:
        envs = open_envs(train.env, num_slots, evaluation_episodes, opened)
        player = HostPopulation(
            train.env,
            agent,
            num_slots,
            explore=config.explore,
            track_obs=config.tracks_obs,
            measures=evolution.measures,
            description=None if envs is None else Description.of(envs),
        )
        opened.callback(player.close)
        host_evaluator = HostEvaluator(train.env, agent, num_slots, opened=envs)
        return HostGenerations(evolution, layout, player, host_evaluator, num_episodes)


def open_envs(
    env: EnvConfig, num_envs: int, evaluation_episodes: int | None, opened: contextlib.ExitStack
) -> BaseEnv | None:
    """Make the evaluation environments of a run that is only evaluated; None for a run that trains."""
    check_one_host(env)
    if evaluation_episodes is None:
        return None
    envs = make_evaluation_envs(env, num_envs, evaluation_episodes)
    opened.callback(envs.close)
    return envs


def make_group(
    train: TrainConfig, num_envs: int, rollout_length: int, envs: BaseEnv | None, opened: contextlib.ExitStack
) -> RunnerGroup:
    """Make the runners; if `envs` is given, it describes the environments and none are started for that."""
    group = LocalRunners(
        RunnerSpec(EnvSpec(train.env, num_envs), rollout_length, train.seed),
        description=None if envs is None else Description.of(envs),
        callbacks=FaultNotices(),
    )
    opened.callback(group.close)
    return group


def several_agents_error(settings: Settings) -> InvalidInputError:
    """Return the error for a single-agent method on a multi-agent environment."""
    return InvalidInputError(
        f"{settings.train.env.name} has several agents, and {settings.agent_name} trains one: use another agent, "
        "such as ppo."
    )
