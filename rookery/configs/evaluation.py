"""What an evaluation of a run may change: its environment. It may also name own classes of the run again."""

from collections.abc import Mapping, Sequence
from typing import Any

from rookery.configs.composition import check, compose, parse, with_values
from rookery.configs.declared import train_defaults
from rookery.configs.resumption import changes_from, named_again
from rookery.configuration import from_mapping, plain
from rookery.envs.config import EnvConfig
from rookery.errors import InvalidInputError

OWN_CLASSES = {"agent": "agent", "agent.network.encoder": "network"}


def split_overrides(config: Mapping[str, Any], overrides: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Return the own classes that overrides name again, `agent` and `network`, and the other overrides."""
    own = [text for text in overrides if parse(text).key_or_group in OWN_CLASSES]
    changes = changes_from(own)
    named_again(config, changes)
    return {OWN_CLASSES[key]: str(name) for key, name in changes.items()}, [
        text for text in overrides if text not in own
    ]


def evaluated_env(config: Mapping[str, Any], overrides: Sequence[str] = ()) -> EnvConfig:
    """Return the environment of a run with overrides such as `env.kwargs.gravity=1`.

    `env=NAME` takes another environment, with the defaults of that one.
    """
    parsed = [parse(text) for text in overrides]
    for override in parsed:
        if override.key_or_group.partition(".")[0] != "env" or override.is_delete():
            raise InvalidInputError(
                f"{override.input_line}: an evaluation can change the environment, env=NAME and env.KEY=VALUE."
            )
        check(override)
    if any(override.key_or_group == "env" for override in parsed):
        return from_mapping(EnvConfig, compose(overrides)["env"], "env")
    env = train_defaults()["env"] | plain(config.get("env", {}), "env")
    return from_mapping(EnvConfig, with_values({"env": env}, changes_from(overrides))["env"], "env")
