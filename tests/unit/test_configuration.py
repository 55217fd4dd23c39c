"""From a mapping to a dataclass: what is accepted, and what the errors say."""

import enum
import math
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml
from omegaconf import OmegaConf

import rookery
from rookery.configuration import check_settings, declarations, field_names, from_mapping, plain, setting, to_mapping
from rookery.errors import InvalidInputError, RookeryError, UnknownNameError, check_count, unknown_name
from rookery.types import PyTreeData, pytree_field


class Color(enum.Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True)
class Network:
    hidden_sizes: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"


@dataclass(frozen=True)
class Agent:
    num_envs: int = 8
    num_minibatches: int = 4
    learning_rate: float = 3e-4
    shuffle: bool = True
    optimizer: str = "adam"
    max_grad_norm: float | None = 0.5
    color: Color = Color.RED
    recorders: tuple[str, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    network: Network = field(default_factory=Network)

    def __post_init__(self) -> None:
        check_count("num_envs", self.num_envs)
        if self.num_envs % self.num_minibatches:
            raise InvalidInputError("the envs cannot be cut into minibatches.")
        if self.optimizer == "adan":
            raise unknown_name("optimizer", self.optimizer, ["adam"])


def build(**mapping: Any) -> Agent:
    return from_mapping(Agent, mapping, "agent")


def test_what_the_mapping_does_not_say_keeps_its_default() -> None:
    assert from_mapping(Agent, {}, "agent") == Agent()
    assert build(num_envs=4) == Agent(num_envs=4)


def test_a_full_mapping_becomes_the_dataclass_it_describes() -> None:
    built = build(
        num_envs=12,
        learning_rate=1,
        shuffle=False,
        max_grad_norm=None,
        color="blue",
        recorders=["console"],
        kwargs={"backend": {"name": "spring"}},
        network={"hidden_sizes": [32], "activation": "relu"},
    )
    assert built == Agent(
        num_envs=12,
        learning_rate=1.0,
        shuffle=False,
        max_grad_norm=None,
        color=Color.BLUE,
        recorders=("console",),
        kwargs={"backend": {"name": "spring"}},
        network=Network((32,), "relu"),
    )
    assert isinstance(built.learning_rate, float)


@pytest.mark.parametrize("text", ["1e6", "1000000", "1_000_000", "1000000.0", "1.0e+6"])
def test_a_whole_number_may_be_written_in_every_way_that_yaml_readers_make_something_of(text: str) -> None:
    for loaded in (yaml.safe_load(text), OmegaConf.create(f"x: {text}").x):
        num_envs = build(num_envs=loaded).num_envs
        assert (num_envs, type(num_envs)) == (1_000_000, int)


@pytest.mark.parametrize(("text", "value"), [("3e-4", 3e-4), ("3.0e-4", 3e-4), (".inf", math.inf), ("inf", math.inf)])
def test_a_number_may_be_written_in_every_way_that_yaml_readers_make_something_of(text: str, value: float) -> None:
    assert build(learning_rate=yaml.safe_load(text)).learning_rate == value


def test_an_integer_beyond_the_precision_of_floats_stays_exact() -> None:
    assert build(num_envs=4 * (2**53 + 1)).num_envs == 4 * (2**53 + 1)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_envs": "many"}, "agent.num_envs='many': expected an integer."),
        ({"num_envs": 2.5}, "agent.num_envs=2.5: expected an integer."),
        ({"num_envs": True}, "agent.num_envs=True: expected an integer."),
        ({"num_envs": None}, "agent.num_envs=None: expected an integer."),
        ({"num_envs": math.inf}, "agent.num_envs=inf: expected an integer."),
        ({"learning_rate": "fast"}, "agent.learning_rate='fast': expected a number."),
        ({"learning_rate": False}, "agent.learning_rate=False: expected a number."),
        ({"learning_rate": math.nan}, "agent.learning_rate=nan: expected a number."),
        ({"learning_rate": 10**400}, f"agent.learning_rate=1{'0' * 79}...: expected a number."),
        ({"learning_rate": [1]}, "agent.learning_rate=[1]: expected a number."),
        ({"max_grad_norm": "none"}, "agent.max_grad_norm='none': expected a number or null."),
        ({"shuffle": 1}, "agent.shuffle=1: expected true or false."),
        ({"shuffle": "true"}, "agent.shuffle='true': expected true or false."),
        ({"optimizer": 3}, "agent.optimizer=3: expected a string."),
        ({"color": "green"}, "agent.color='green': expected one of red, blue."),
        ({"recorders": "console"}, "agent.recorders='console': expected a list of strings."),
        ({"recorders": [1]}, "agent.recorders[0]=1: expected a string."),
        ({"kwargs": 3}, "agent.kwargs=3: expected a mapping."),
        ({"network": 64}, "agent.network=64: expected a mapping with the keys hidden_sizes, activation."),
        ({"network": {"hidden_sizes": 64}}, "agent.network.hidden_sizes=64: expected a list of integers."),
        ({"network": {"hidden_sizes": [64, "x"]}}, "agent.network.hidden_sizes[1]='x': expected an integer."),
        ({"network": {"activation": "tan"}}, "agent.network.activation='tan': expected one of tanh, relu."),
    ],
)
def test_a_wrong_type_is_named_with_its_place_and_with_what_was_expected(given: dict, message: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        build(**given)
    assert str(caught.value) == message


def test_an_unknown_key_gets_the_nearest_one() -> None:
    with pytest.raises(
        UnknownNameError, match=r"^agent: unknown key 'minibach_size'. Did you mean 'num_minibatches'\?$"
    ):
        build(minibach_size=3)
    with pytest.raises(
        UnknownNameError, match=r"^agent.network: unknown key 'hiden_sizes'. Did you mean 'hidden_sizes'"
    ):
        build(network={"hiden_sizes": [3]})


def test_an_unknown_key_that_resembles_none_gets_the_list_of_keys() -> None:
    with pytest.raises(UnknownNameError, match=r"network: unknown key 'zzz'. The keys are: hidden_sizes, activation.$"):
        build(network={"zzz": 1})


def test_errors_of_the_dataclass_itself_are_told_with_their_place() -> None:
    with pytest.raises(InvalidInputError, match=r"^agent\.num_envs=0 must be an integer of at least 1\.$"):
        build(num_envs=0)
    with pytest.raises(InvalidInputError, match=r"^agent: the envs cannot be cut into minibatches\.$"):
        build(num_envs=9)
    with pytest.raises(UnknownNameError, match=r"^agent: unknown optimizer 'adan'\. Did you mean 'adam'\?$"):
        build(optimizer="adan")
    with pytest.raises(InvalidInputError, match=r"^num_envs=0 must be"):
        from_mapping(Agent, {"num_envs": 0}, "")


def test_a_key_without_a_default_must_be_there() -> None:
    @dataclass(frozen=True)
    class Named:
        name: str

    with pytest.raises(InvalidInputError, match=r"^env: missing key 'name'\.$"):
        from_mapping(Named, {}, "env")


def test_a_composed_config_is_resolved_and_its_lists_are_taken() -> None:
    config = OmegaConf.create({"num_envs": 16, "num_minibatches": "${num_envs}", "network": {"hidden_sizes": [8, 8]}})
    assert from_mapping(Agent, config, "agent") == Agent(16, 16, network=Network((8, 8)))


def test_an_interpolation_that_leads_nowhere_is_named() -> None:
    with pytest.raises(InvalidInputError, match=r"^agent\.num_envs: Interpolation key 'nothing' not found\.$"):
        from_mapping(Agent, OmegaConf.create({"num_envs": "${nothing}"}), "agent")


@pytest.mark.parametrize(
    ("config", "place"),
    [
        ({"_target_": "os.system"}, "agent._target_"),
        ({"kwargs": {"a": [{"_target_": "os.system"}]}}, "agent.kwargs.a[0]._target_"),
        (OmegaConf.create({"network": {"_target_": "os.system"}}), "agent.network._target_"),
    ],
)
def test_a_target_is_refused_wherever_it_stands(config: Any, place: str) -> None:
    with pytest.raises(InvalidInputError) as caught:
        from_mapping(Agent, config, "agent")
    assert str(caught.value) == f"{place}: a config cannot name Python objects; use a registered name."


def test_something_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InvalidInputError, match=r"^agent=\[1\]: expected a mapping\.$"):
        from_mapping(Agent, [1], "agent")  # type: ignore[arg-type]


def test_hyperparameters_take_a_number_or_a_nested_dataclass() -> None:
    class Schedule(PyTreeData):
        start: float
        end: float

    class Hyperparameters(PyTreeData):
        learning_rate: Schedule | float = 1e-3
        derived: float = pytree_field(init=False, default=0.0)

    assert field_names(Hyperparameters) == ["learning_rate"]
    assert from_mapping(Hyperparameters, {"learning_rate": "1e-2"}, "agent").learning_rate == 1e-2
    schedule = from_mapping(Hyperparameters, {"learning_rate": {"start": 1, "end": 0}}, "agent").learning_rate
    assert isinstance(schedule, Schedule)
    assert (schedule.start, schedule.end) == (1.0, 0.0)
    with pytest.raises(UnknownNameError, match=r"^agent\.learning_rate: unknown key 'strat'. Did you mean 'start'\?"):
        from_mapping(Hyperparameters, {"learning_rate": {"strat": 1}}, "agent")


def test_plain_leaves_the_given_config_as_it_is() -> None:
    config = {"agent": {"name": "ppo"}}
    plain(config).pop("agent")
    assert config == {"agent": {"name": "ppo"}}


def test_importing_it_needs_neither_hydra_nor_omegaconf_nor_jax() -> None:
    folder = str(Path(rookery.__file__).parent)
    code = (
        f"import sys, types; package = types.ModuleType('rookery'); package.__path__ = [{folder!r}];"
        "sys.modules['rookery'] = package; import rookery.configuration;"
        "print([name for name in ('hydra', 'omegaconf', 'jax') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "[]", done.stderr


@dataclass(frozen=True)
class Collector:
    num_envs: int = setting(8, low=1, help="number of environments")
    burn_in: int = setting(0, low=0)
    share: float | None = setting(0.5, low=0.0, high=1.0)
    sizes: tuple[int, ...] = setting((4,), low=1)
    optimizer: str = setting("adam", choices=("adam", "rmsprop"))
    params: Mapping[str, Any] = setting({"a": 1})

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True)
class SmallCollector(Collector):
    num_envs: int = 2


def test_a_setting_has_its_default_and_is_not_shared() -> None:
    assert (Collector().num_envs, Collector().params) == (8, {"a": 1})
    assert Collector().params is not Collector().params


def test_a_subclass_that_changes_a_default_inherits_range_and_help() -> None:
    assert SmallCollector().num_envs == 2
    assert declarations(SmallCollector) == declarations(Collector)
    assert declarations(SmallCollector)["num_envs"].help == "number of environments"
    with pytest.raises(InvalidInputError, match=r"^num_envs=0 must be an integer of at least 1\.$"):
        SmallCollector(num_envs=0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"num_envs": 0}, "agent.num_envs=0 must be an integer of at least 1."),
        ({"burn_in": -1}, "agent.burn_in=-1 must be an integer of at least 0."),
        ({"share": 1.5}, "agent.share=1.5 must lie between 0 and 1."),
        ({"sizes": [3, 0]}, "agent.sizes=(3, 0): every entry must be an integer of at least 1."),
        ({"optimizer": "adm"}, "agent: unknown optimizer 'adm'. Did you mean 'adam'?"),
    ],
)
def test_a_value_outside_its_declaration_is_named_with_what_is_allowed(given: dict, message: str) -> None:
    with pytest.raises(RookeryError) as caught:
        from_mapping(Collector, given, "agent")
    assert str(caught.value) == message


@pytest.mark.parametrize("value", [True, 1.5, None, "2"])
def test_an_integer_setting_takes_integers_alone_in_python_too(value: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"^num_envs=.* must be an integer of at least 1\.$"):
        Collector(num_envs=value)


def test_none_is_accepted_where_the_annotation_has_it() -> None:
    assert Collector(share=None).share is None


def test_to_mapping_is_the_inverse_of_from_mapping() -> None:
    config = build(color="blue", recorders=["console"], kwargs={"a": {"b": 1}})
    assert from_mapping(Agent, yaml.safe_load(yaml.safe_dump(to_mapping(config))), "agent") == config
