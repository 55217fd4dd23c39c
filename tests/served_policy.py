"""A server of a policy that nobody has trained."""

import contextlib
from collections.abc import Iterator

import jax
import numpy as np

from rookery.agents.policy import PolicyAgent
from rookery.networks.policy import PolicyConfig
from rookery.policy import Policy
from rookery.runners.envs.base_env import SINGLE_AGENT
from rookery.runners.envs.episode_book import EpisodeBook
from rookery.serving.app import Application
from rookery.serving.episodes import Episodes
from rookery.serving.limits import Limits
from rookery.serving.metrics import Metrics
from rookery.serving.policy_server import PolicyServer, StepLog
from rookery.serving.server import Server
from rookery.serving.tokens import Tokens
from rookery.spaces import Box, Discrete
from tests.served import served

SPACES = Box(-np.inf, np.inf, (4,)), Discrete(2)
"""Those of CartPole."""


@contextlib.contextmanager
def served_policy(
    tokens: Tokens | None = None, log: StepLog | None = None, acts_in_thread: bool = False
) -> Iterator[Server]:
    """Serve a policy of CartPole as version 20480."""
    agent = PolicyAgent(config=PolicyConfig(hidden_sizes=(4,)))
    policy = Policy(agent, agent.init(*SPACES, jax.random.key(0)), *SPACES)
    book, metrics = EpisodeBook(0, [SINGLE_AGENT]), Metrics()
    policies = PolicyServer({"default": policy}, {SINGLE_AGENT: "default"}, 20_480, book, metrics, log=log)
    if acts_in_thread:
        policies.act_in_thread()
    episodes = Episodes(book, {SINGLE_AGENT: SPACES}, notify=policies.wake)
    app = Application(episodes, tokens or Tokens.none(), Limits(), metrics, policies)
    app.is_ready = True
    with served(app) as server:
        yield server
