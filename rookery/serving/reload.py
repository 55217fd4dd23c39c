"""Takes newer checkpoints of a run while its policies are served."""

import contextvars
import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from rookery.configuration import to_mapping
from rookery.errors import RookeryError
from rookery.policy import Policy
from rookery.serving.metrics import Metrics
from rookery.serving.policy_server import PolicyServer
from rookery.spaces import alike
from rookery.types import all_finite

RELOAD_SECONDS = 2.0
REFUSED = "refused"

logger = logging.getLogger(__name__)


class ReloadError(RookeryError):
    """A newer checkpoint cannot be served."""


class Reload:
    """Looks for newer checkpoints in a thread, and hands their policies to a `PolicyServer`.

    `newest` returns the step of the newest checkpoint, or None; `read` its policies by name. A checkpoint that cannot
    be served is named once and counted, and the present policies stay.
    """

    def __init__(
        self,
        server: PolicyServer,
        newest: Callable[[], int | None],
        read: Callable[[int], Mapping[str, Policy]],
        metrics: Metrics,
    ) -> None:
        self._server, self._newest, self._read = server, newest, read
        self._metrics = metrics
        self._refused_step: int | None = None
        self._stopped = threading.Event()
        context = contextvars.copy_context()  # which modules a run may name
        self._thread = threading.Thread(target=context.run, args=(self._run,), name="rookery-reload", daemon=True)

    def start(self) -> None:
        """Look for newer checkpoints from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stopped.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(RELOAD_SECONDS):
            self.check()

    def check(self) -> None:
        """Serve the newest checkpoint, if it is newer than what is served."""
        step = None
        try:
            step = self._newest()
            if step is None or step <= self._server.team.version or step == self._refused_step:
                return
            self._server.replace(self._updated(self._read(step)), step)
            self._metrics.reloads["loaded"] += 1
        except Exception as error:
            if step is None or step != self._refused_step:
                logger.error("the checkpoint %s is not served: %s", step, error)
            self._refused_step = step
            self._metrics.reloads[REFUSED] += 1

    def _updated(self, policies: Mapping[str, Policy]) -> dict[str, Policy]:
        """Return the served policies with the states of newer ones."""
        served = self._server.team.policies
        if policies.keys() != served.keys():
            raise ReloadError(f"it has the policies {', '.join(policies)}; expected {', '.join(served)}.")
        for name, policy in policies.items():
            ours = served[name]
            if not (alike(policy.obs_space, ours.obs_space) and alike(policy.action_space, ours.action_space)):
                raise ReloadError(f"policy {name} has other spaces.")
            if _form_of(policy) != _form_of(ours):
                raise ReloadError(f"policy {name} has another agent or other networks.")
            if not all_finite(policy.agent_state):
                raise ReloadError(f"policy {name} has parameters that are not finite.")
        return {
            name: served[name].with_state(policy.agent_state, policy.num_steps) for name, policy in policies.items()
        }


def _form_of(policy: Policy) -> tuple[Any, ...]:
    """Return what policies have in common that can share compiled programs."""
    leaves, treedef = jax.tree.flatten(policy.agent_state)
    shapes = [(np.shape(leaf), np.asarray(leaf).dtype) for leaf in leaves]
    return type(policy.agent), to_mapping(policy.agent), treedef, shapes
