"""The ASGI application: who may ask, what is asked, and the answer."""

from collections.abc import Collection
from typing import Any

from rookery.runners.envs.episode_messages import Mode
from rookery.serving.episodes import Episodes
from rookery.serving.limits import Limits
from rookery.serving.metrics import Metrics
from rookery.serving.policy_server import PolicyServer
from rookery.serving.tokens import Tokens


class Application:
    """Serves the protocol `/v1` under any ASGI server."""

    def __init__(
        self,
        episodes: Episodes,
        tokens: Tokens,
        limits: Limits,
        metrics: Metrics,
        policies: PolicyServer | None = None,
        allowed_origins: Collection[str] = (),
        default_mode: Mode = Mode.WATCH,
    ) -> None:
        self.is_ready = False
        self.num_open_steps = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        raise NotImplementedError

    def drain(self) -> None:
        """Begin no more episodes; open steps are answered."""
