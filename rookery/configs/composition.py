"""Composes a config from the files of this package and command-line overrides, by Hydra.

`agent=ppo` and `env=classic/pendulum` select configs of a group. The file `preset/ppo/classic/pendulum.yaml`, if it
exists, changes defaults for that pair. `agent.learning_rate=1e-3` changes one value and takes precedence. Errors of
Hydra become one line that suggests the nearest names.
"""

import copy
import itertools
import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rookery.configuration import plain
from rookery.errors import InvalidInputError, UnknownNameError, nearest_names, shortened, unknown_name
from rookery.registry import AGENTS, agent_names, workflow_class

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override

FOLDER = Path(__file__).parent
MODULE = "rookery.configs"
GROUPS = ("agent", "env")
OPEN_MAPPINGS = ("env.kwargs", "agent.member", "agent.space")
"""Their keys depend on another setting, the environment or the method of the members, and are checked at build."""
OPEN_KEYS = tuple(f"{mapping}." for mapping in OPEN_MAPPINGS)
POLICIES = "env.policies"
"""Its first pattern that matches counts, so another mapping replaces it as a whole."""
NETWORK = "agent.network"
"""Instead of its settings it may be the name or the class of an own encoder."""
OTHER_NAMES = {
    "lr": ("agent.learning_rate", "agent.actor_learning_rate"),
    "gamma": ("agent.discount",),
    "lambda_": ("agent.gae_lambda", "agent.trace_lambda"),
    "n_steps": ("agent.n_step", "agent.rollout_length"),
    "n_epochs": ("agent.num_epochs",),
    "n_envs": ("agent.num_envs", "agent.num_lanes"),
    "overlap": ("max_staleness",),
    "num_workers": ("num_env_runners",),
    "batch_size": ("agent.num_minibatches",),
    "train_batch_size": ("agent.batch_size", "agent.rollout_length"),
    "ent_coef": ("agent.entropy_coefficient", "agent.temperature"),
    "vf_coef": ("agent.value_coefficient",),
    "clip_range": ("agent.clip_ratio",),
    "max_grad_norm": ("agent.max_grad_norm",),
    "net_arch": ("agent.network.hidden_sizes",),
    "tau": ("agent.target_update_rate",),
    "buffer_size": ("agent.buffer_capacity",),
    "learning_starts": ("agent.warmup_steps",),
}
"""Our keys for the names of Stable-Baselines3 and RLlib; the first that the method has counts."""
MEANINGS = {
    "agent.num_minibatches": "the number of parts of a batch",
    "agent.rollout_length": "the steps of each environment between two updates; a batch has num_envs times as many",
    "max_staleness": "1 to collect the next batch during an update, with the parameters before it",
    "num_env_runners": "the number of runners of host environments on Ray",
}
"""What keys mean that are not another word for the same number."""
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
    workflow_class(config["agent"].get("name"))
    return config


def with_values(config: Mapping[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a config with other values by key; a key without a dot may also be one of the agent's.

    A mapping changes the entries that it has, except that of `env.policies`. The values are not checked here.
    """
    changed = copy.deepcopy(dict(config))
    for name, value in values.items():
        key = full_key(config, name)
        if key == NETWORK and isinstance(value, (str, type)):
            value = {"encoder": value}
        *path, last = key.split(".")
        parent = changed
        for part in path:
            parent = parent[part]
        is_merged = key != POLICIES and isinstance(value, Mapping) and isinstance(parent.get(last), Mapping)
        parent[last] = {**parent[last], **value} if is_merged else value
    return changed


def full_key(config: Mapping[str, Any], name: str) -> str:
    """Return the key of a config that a name means; raise if there is none."""
    known = list(_keys(config))
    key = name if name in known or "." in name else f"agent.{name}"
    if key not in known and not key.startswith(OPEN_KEYS):
        raise unknown_key(name, known)
    return key


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
        override: Override = OverridesParser.create().parse_overrides([_with_quoted_path(_in_full(text))])[0]
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


def _in_full(text: str) -> str:
    """Return `agent.network=my_module:MyEncoder` as the key that it stands for."""
    key, _, value = text.partition("=")
    return text if key != NETWORK or value.startswith("{") else f"{NETWORK}.encoder={value}"


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
            provide_agent(name)


def provide_agent(name: str) -> None:
    """Add the method `name` to Hydra's store if it is not ours; raise if it does not exist."""
    if name in AGENTS:
        return
    from rookery.configs.declared import register_agent

    workflow_class(name)
    register_agent(name)


def provide_env(name: str) -> None:
    """Add the environment `name` to Hydra's store if it has no file; raise if it does not exist."""
    if name in stored_names("env"):
        return
    from hydra.core.config_store import ConfigStore

    from rookery.envs.registration import check_env_name

    check_env_name(name)
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
    may_add = key.startswith(OPEN_MAPPINGS) or (isinstance(override.value(), dict) and key[0] not in "+~")
    return f"++{text}" if may_add and key not in GROUPS else text


def _check_keys(overrides: Sequence["Override"]) -> None:
    """Raise if one of the overrides changes a key that does not exist."""
    changes = [override for override in overrides if not override.is_add() and not override.is_force_add()]
    choices = [str(override.input_line) for override in changes if override.get_key_element() in GROUPS]
    known = list(_keys(_compose(choices)))
    for override in changes:
        key = override.key_or_group
        if override.package is None and key not in known and not key.startswith(OPEN_MAPPINGS):
            raise unknown_key(key, known)


def unknown_key(key: str, known: Collection[str]) -> UnknownNameError:
    """Return the error for an unknown key: our name if it is one of another library, or the nearest key."""
    for ours in OTHER_NAMES.get(key.rpartition(".")[2], ()):
        if ours in known:
            advice = f"{key}: set {ours}, {MEANINGS[ours]}." if ours in MEANINGS else f"{key} is called {ours}."
            return UnknownNameError(advice)
    of_agent = {name.removeprefix("agent."): name for name in known if name.startswith("agent.")}
    near = nearest_names(key, known)[:1] or [of_agent[name] for name in nearest_names(key, of_agent)[:1]]
    hint = f"Did you mean {near[0]!r}?" if near else "`rookery train --show-config` shows all keys."
    return unknown_name("key", key, [], hint)


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
