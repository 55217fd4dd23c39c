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
MAX_LOOKS = 64
"""A refused checkpoint is read again at looks 2, 4, 8, ..., and then at each multiple of this."""
REFUSED = "refused"

logger = logging.getLogger(__name__)


class ReloadError(RookeryError):
    """A newer checkpoint cannot be served."""


class Reload:
    """Looks for newer checkpoints in a thread, and hands their policies to a `PolicyServer`.

    `newest` returns the step of the newest checkpoint, or None; `read` its policies by name. A checkpoint that cannot
    be served is named once and counted, and the present policies stay. It is read again after growing pauses: the
    error may be transient.
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
        self._refused: tuple[int | None, str] = (None, "")
        """The last step that could not be served, and why."""
        self._num_looks = 0
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
            if step is None or step <= self._server.team.version or self._pauses(step):
                return
            self._server.replace(self._updated(self._read(step)), step)
            self._metrics.reloads["loaded"] += 1
        except Exception as error:
            refused = step, str(error)
            if refused != self._refused:
                logger.error("the checkpoint %s is not served: %s", step, error)
                self._metrics.reloads[REFUSED] += 1
            self._refused = refused

    def _pauses(self, step: int) -> bool:
        """Return whether it is too early to read a refused checkpoint again."""
        self._num_looks = self._num_looks + 1 if step == self._refused[0] else 1
        return self._num_looks.bit_count() > 1 and self._num_looks % MAX_LOOKS != 0

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
