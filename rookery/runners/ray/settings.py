"""The settings of runners on Ray: where they run, what they reserve, and how long to wait for them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from rookery.configuration import check_settings, setting
from rookery.errors import InvalidInputError

LOCAL, AUTO = "local", "auto"
OWN_SETTINGS = {"CPU": "num_cpus_per_env_runner", "GPU": "num_gpus_per_env_runner"}
"""The settings of resources that Ray knows by name."""


@dataclass(frozen=True)
class RaySettings:
    """Where and how runners on Ray run. It says nothing about the results of a run, so no run directory contains it.

    It comes from the command line or from Python only: an address in a file of a stranger would be joined.
    """

    address: str | None = setting(
        None,
        help="null: a Ray of our own on this machine; auto or HOST:PORT: join a cluster. null and auto take the "
        "variable RAY_ADDRESS if it is set; local: do not",
    )
    num_cpus_per_env_runner: float = setting(1.0, low=0.0, high=4096, help="CPUs that a runner reserves")
    num_gpus_per_env_runner: float = setting(
        0.0, low=0.0, high=64, help="GPUs that a runner reserves; 0.5: two runners share one"
    )
    resources_per_env_runner: Mapping[str, float] = setting(
        {}, help="other resources of the cluster that a runner reserves: {simulator: 1}"
    )
    min_env_runners: int = setting(1, low=1, help="training begins and goes on with this many runners")
    wait_timeout: float = setting(600.0, low=0.0, help="seconds with fewer runners after which the run saves and ends")
    sample_timeout: float | None = setting(
        None,
        help="seconds after which a runner that does not answer is replaced; null: 20 times the slowest request so "
        "far, at least 60, and 600 for the first",
    )
    insecure: bool = setting(False, help="join a cluster that accepts anybody, without a token")

    def __post_init__(self) -> None:
        check_settings(self)
        if self.sample_timeout is not None and not self.sample_timeout > 0:
            raise InvalidInputError(f"sample_timeout={self.sample_timeout:g} must be more than 0 seconds, or null.")
        for name, amount in self.resources_per_env_runner.items():
            if name in OWN_SETTINGS:
                raise InvalidInputError(
                    f"resources_per_env_runner={dict(self.resources_per_env_runner)}: {name} is set by "
                    f"ray.{OWN_SETTINGS[name]}."
                )
            is_number = isinstance(amount, (int, float)) and not isinstance(amount, bool)
            if not is_number or not math.isfinite(amount) or amount < 0:
                raise InvalidInputError(
                    f"resources_per_env_runner={dict(self.resources_per_env_runner)}: {name} must be a number of at "
                    "least 0."
                )
        if self.address is not None:
            check_address(f"address={self.address}", self.address)

    def resources(self) -> dict[str, float]:
        """Return what a runner reserves, by Ray's names, without what it does not need."""
        named = {name: getattr(self, field) for name, field in OWN_SETTINGS.items()}
        return {name: amount for name, amount in (named | dict(self.resources_per_env_runner)).items() if amount > 0}


def check_address(given: str, address: str) -> None:
    """Raise unless `address` is one of a cluster that a driver can join; errors begin with `given`."""
    if "://" in address:
        raise InvalidInputError(
            f"{given}: a run needs a place in the cluster. Start it there with `ray job submit`, and give auto or "
            "HOST:PORT."
        )
    host, _, port = address.rpartition(":")
    if address not in (LOCAL, AUTO) and not (host and port.isdecimal() and int(port) < 2**16):
        raise InvalidInputError(f"{given}: expected auto, local or HOST:PORT, such as 10.0.0.1:6379.")
