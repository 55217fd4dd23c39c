"""Composes a config from the files of this package and command-line overrides, by Hydra.

`agent=ppo` and `env=classic/pendulum` select configs of a group. The file `preset/ppo/classic/pendulum.yaml`, if it
exists, changes defaults for that pair. `agent.learning_rate=1e-3` changes one value and takes precedence. Errors of
Hydra become one line that suggests the nearest names.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.configuration import plain
from rookery.errors import InvalidInputError, nearest_names, shortened, unknown_name
from rookery.registry import agent_names

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

FOLDER = Path(__file__).parent
MODULE = "rookery.configs"
GROUPS = ("agent", "env")
OPEN_MAPPING = "env.kwargs"
"""Its keys are arguments of an environment library, so any key is valid."""
MAX_KEY_LENGTH = 200
MAX_RUNS = 10_000


def compose(overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Compose the config with these overrides, as plain dicts and lists."""
    from hydra.errors import HydraException

    parsed = [parse(text) for text in overrides]
    for override in parsed:
        check(override)
    try:
        config = _compose([_with_sign(override) for override in parsed])
    except HydraException as error:
        _check_keys(parsed)
        raise InvalidInputError(" ".join(str(error).split())) from error
    check_agent(config["agent"].get("name"))
    return config


def sweep(overrides: Sequence[str]) -> list[list[str]]:
    """Expand `agent=ppo,a2c seed=range(3)` into the overrides of each run, in order."""
    choices: dict[str, list[str]] = {}
    for text in overrides:
        override = parse(text)
        key = override.get_key_element()
        choices[key] = [f"{key}={value}" for value in _values(override)] if override.is_sweep_override() else [text]
    num_runs = math.prod(map(len, choices.values()))
    if num_runs > MAX_RUNS:
        raise InvalidInputError(f"--multirun: these are more than {MAX_RUNS:,} runs; start them in several commands.")
    return [list(job) for job in itertools.product(*choices.values())]


def stored_names(group: str) -> list[str]:
    """Return the names of all configs of a group."""
    if group == "agent":
        return sorted(agent_names())
    paths = (FOLDER / group).rglob("*.yaml")
    return sorted(path.relative_to(FOLDER / group).with_suffix("").as_posix() for path in paths)


def parse(text: str) -> "Override":
    """Read one override by Hydra's grammar."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        override: Override = OverridesParser.create().parse_overrides([_with_quoted_path(text)])[0]
    # An integer of too many digits is a ValueError.
    except (HydraException, ValueError, RecursionError) as error:
        if "=" in text:
            advice = "check brackets and quotes; write a value with special characters as key=\"'a=b'\"."
        else:
            advice = "expected key=value, like agent.learning_rate=1e-3."
        raise InvalidInputError(f"cannot read the override {shortened(text)!r}: {advice}") from error
    if not override.key_or_group:
        raise InvalidInputError(f"{shortened(text)}: expected key=value, like agent.learning_rate=1e-3.")
    if len(override.key_or_group) > MAX_KEY_LENGTH:
        raise unknown_name("key", shortened(text), [], "`rookery train --show-config` shows all keys.")
    return override


def _with_quoted_path(text: str) -> str:
    """Quote the name of a run directory for Hydra, which else reads only some characters."""
    from hydra.core.override_parser.types import Quote, QuotedString

    key, is_given, path = text.partition("=")
    if key != "run_dir" or not is_given or path in ("", "null") or path[0] in "'\"":
        return text
    return f"{key}={QuotedString(path, Quote.single).with_quotes()}"


def check(override: "Override") -> None:
    """Raise for overrides that Hydra would ignore, or reject with a long error."""
    key, value = override.key_or_group, override.value()
    if override.is_hydra_override():
        raise InvalidInputError(f"{override.input_line}: Hydra's own settings have no effect here; see run_dir=FOLDER.")
    if override.is_sweep_override():
        raise InvalidInputError(
            f"{override.input_line} asks for several runs: add --multirun, or write a list as {key}=[...]."
        )
    if key in GROUPS and override.is_delete():
        raise InvalidInputError(f"{override.input_line}: every run has an {key}; choose another as {key}=NAME.")
    if key in GROUPS and isinstance(value, dict):
        raise InvalidInputError(
            f"{override.input_line}: expected {key}=NAME; single settings are written as {key}.KEY=VALUE."
        )
    if key in GROUPS:
        name = value if isinstance(value, str) else override.get_value_string()
        if key == "env":
            provide_env(name)
        else:
            check_agent(name)


def check_agent(name: Any) -> None:
    """Raise if no agent has this name."""
    if name not in agent_names():
        is_near = nearest_names(str(name), agent_names())
        raise unknown_name("agent", str(name), agent_names(), "" if is_near else "`rookery list agents` shows all.")


def provide_env(name: str) -> None:
    """Add the environment `name` to Hydra's store if it has no file; raise if it does not exist."""
    if name in stored_names("env"):
        return
    from hydra.core.config_store import ConfigStore

    from rookery.envs import env_names, library_names
    from rookery.envs.libraries import is_on_host
    from rookery.envs.registration import unknown_environment

    hint = "`rookery list envs` shows all."
    library, _, name_in_library = name.partition("/")
    if is_on_host(library) and name_in_library:
        known = [name]  # a host library may have more environments than it lists: building reports an unknown one
    elif name_in_library or library in library_names():
        known = env_names(library)
    else:
        raise unknown_environment(name, hint=hint)
    if name not in known:
        raise unknown_name("environment", name, known, hint)
    folder, _, file = f"env/{name}".rpartition("/")
    ConfigStore.instance().store(group=folder, name=file, node={"name": name}, provider="rookery")


def _compose(overrides: list[str]) -> dict[str, Any]:
    import hydra

    with hydra.initialize_config_module(MODULE, version_base="1.3"):
        return plain(hydra.compose("config", overrides=overrides))


def _with_sign(override: "Override") -> str:
    """Return the override for Hydra, with the prefix `++` if it may add a key.

    Arguments of an environment library may add keys, and so may mappings: a schedule may have a key that its preset
    lacks.
    """
    text, key = str(override.input_line), override.get_key_element()
    may_add = key.startswith(OPEN_MAPPING) or (isinstance(override.value(), dict) and key[0] not in "+~")
    return f"++{text}" if may_add and key not in GROUPS else text


def _check_keys(overrides: Sequence["Override"]) -> None:
    """Raise if one of the overrides changes a key that does not exist."""
    changes = [override for override in overrides if not override.is_add() and not override.is_force_add()]
    choices = [str(override.input_line) for override in changes if override.get_key_element() in GROUPS]
    known = list(_keys(_compose(choices)))
    for override in changes:
        key = override.key_or_group
        if override.package is None and key not in known and not key.startswith(OPEN_MAPPING):
            near = nearest_names(key, known)[:1]
            raise unknown_name("key", key, near, "" if near else "`rookery train --show-config` shows all keys.")


def _keys(config: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in config.items():
        yield prefix + key
        if isinstance(value, Mapping):
            yield from _keys(value, f"{prefix}{key}.")


def _values(override: "Override") -> list[str]:
    """Return the values of a sweep, as written on the command line."""
    from hydra.core.override_parser.types import Glob

    pattern = override.value()
    if isinstance(pattern, Glob):
        values = pattern.filter(stored_names(override.key_or_group))
    elif override.is_discrete_sweep():
        values = list(itertools.islice(override.sweep_string_iterator(), MAX_RUNS + 1))
    else:
        raise InvalidInputError(
            f"{override.input_line}: expected a list of values, choice(...), range(...) or glob(...)."
        )
    if not values:
        raise InvalidInputError(f"{override.input_line}: nothing matches.")
    return values
