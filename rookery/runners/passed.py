"""What a program passed or registered: other machines do not know it by its name."""

import contextlib
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import gymnasium

from rookery import trust
from rookery.envs import own
from rookery.envs.config import EnvConfig


@dataclass(frozen=True)
class PassedParts:
    """The parts of an environment that only the process of the user's program knows. They are pickled by value."""

    make_fn: Callable[..., Any] | None = None
    """What makes an environment that a program passed."""
    wrappers: Mapping[str, Any] = field(default_factory=dict)
    """Wrappers that a program passed, by name."""
    gymnasium_spec: gymnasium.envs.registration.EnvSpec | None = None
    """What the program registered with Gymnasium."""
    named_by_user: Collection[str] | None = None
    """The names that may be imported; None: all."""

    @classmethod
    def of(cls, env: EnvConfig) -> Self:
        """Collect the parts of an environment in this process."""
        library, _, name = env.name.partition("/")
        return cls(
            own.maker_of(env.name) if own.is_own(env.name) else None,
            trust.passed_objects(env.wrappers),
            gymnasium.registry.get(name) if library == "gymnasium" else None,
            trust.names_given_by_user(),
        )

    @contextlib.contextmanager
    def known_here(self, env: EnvConfig) -> Iterator[None]:
        """Make the parts known to this process, and trust the names that the user's process trusts."""
        if self.make_fn is not None:
            own.set_maker(env.name, self.make_fn)
        if self.gymnasium_spec is not None:
            gymnasium.registry.setdefault(self.gymnasium_spec.id, self.gymnasium_spec)
        trust.pass_objects(self.wrappers)
        if self.named_by_user is None:
            yield
            return
        with trust.strangers_config(self.named_by_user):
            yield
