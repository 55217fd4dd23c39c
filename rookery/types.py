"""Containers for state and logic, all of them JAX pytrees whose key paths name their fields.

Objects hold static logic and are immutable. State is explicit: functions take it as an argument and return the new one.
"""

import dataclasses
import functools
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self, TypeVar, dataclass_transform

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
from jax.tree_util import DictKey, GetAttrKey

from rookery.errors import InvalidInputError, ShapeError, nearest_names

Array = jax.Array
Key = jax.Array
"""One typed key (`jax.random.key`) or an array of them; a legacy `PRNGKey` array is accepted wherever a key is."""
PyTree = Any
"""A tree of arrays."""
Params = PyTree
"""The tree of arrays that a method trains."""
Obs = PyTree
"""An observation or a batch of them: an element of an observation space."""
Action = PyTree
"""An action or a batch of them: an element of an action space."""

PRNG_IMPLEMENTATIONS = ("threefry2x32", "rbg", "unsafe_rbg")


def make_key(seed: int, impl: str = "threefry2x32") -> Key:
    """Make a typed key from a seed; `impl` is the random number generator."""
    if impl not in PRNG_IMPLEMENTATIONS:
        raise InvalidInputError(f"prng implementation {impl!r}: choose one of {', '.join(PRNG_IMPLEMENTATIONS)}.")
    return jax.random.key(seed, impl=impl)


def as_key(key: Key) -> Key:
    """Convert a typed key or a legacy `uint32` array to a typed key."""
    if not isinstance(key, (jax.Array, np.ndarray)):
        raise InvalidInputError(f"expected a random key, got {key!r}: make one with jax.random.key(seed).")
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return key
    if key.dtype == np.uint32 and key.ndim >= 1 and key.shape[-1] in (2, 4):
        return jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32" if key.shape[-1] == 2 else "rbg")
    raise InvalidInputError(
        f"expected a random key, got an array {key.dtype}{list(key.shape)}: make one with jax.random.key(seed)."
    )


def as_one_key(key: Key) -> Key:
    """Convert `key` to a typed key; raise if it is an array of keys."""
    key = as_key(key)
    if key.shape != ():
        raise ShapeError(f"expected one random key, got keys of shape {list(key.shape)}.")
    return key


def as_mappable_key(key: Key) -> Key:
    """Derive a threefry key from `key`, so that `vmap` over keys gives independent random numbers.

    Under `vmap`, the `rbg` generators use only the first of a batch of keys: mapped environments would share their
    random numbers.
    """
    key = as_key(key)
    if str(jax.random.key_impl(key)) == "threefry2x32":
        return key
    return jax.random.wrap_key_data(jax.random.key_data(key)[..., :2], impl="threefry2x32")


MAX_SUMMARY = 180
"""The length of the `repr` of a tree, about."""
LEAST_ROOM = 12
"""The least number of characters in which a part of a tree says something."""


def summary(value: Any, room: int = MAX_SUMMARY) -> str:
    """Describe a tree in one line of about `room` characters: arrays by dtype and shape, like `f32[64,64]`."""
    if hasattr(value, "dtype") and hasattr(value, "shape"):
        return f"{_short_dtype(value.dtype)}[{','.join(map(str, value.shape))}]"
    left, right, parts = _parts_of(value)
    if parts is None:
        text, room = " ".join((getattr(value, "__qualname__", None) or repr(value)).split()), max(room, LEAST_ROOM)
        return text if len(text) <= room else f"{text[: room - 3]}..."
    texts: list[str] = []
    room -= len(left) + len(right)
    for index, (label, part) in enumerate(parts):
        if room < LEAST_ROOM:
            texts.append("...")
            break
        texts.append(label + summary(part, room // min(len(parts) - index, 3) - len(label)))
        room -= len(texts[-1]) + 2
    return f"{left}{', '.join(texts)}{right}"


def _parts_of(value: Any) -> tuple[str, str, Sequence[tuple[str, Any]] | None]:
    """Return how the description of a value begins and ends, and its parts with labels; None if it has none."""
    match value:
        case PyTreeDict():
            return f"{type(value).__name__}(", ")", [(f"{name}=", part) for name, part in value.items()]
        case _ if dataclasses.is_dataclass(value) and not isinstance(value, type):
            names = [field.name for field in dataclasses.fields(value) if field.repr]
            return f"{type(value).__name__}(", ")", [(f"{name}=", getattr(value, name, None)) for name in names]
        case dict():
            return "{", "}", [(f"{name}: ", part) for name, part in value.items()]
        case list() | tuple():
            left, right = "[]" if isinstance(value, list) else "()"
            return left, right, [("", part) for part in value]
    return "", "", None


def _short_dtype(dtype: Any) -> str:
    name = str(dtype)
    for long, short in (("bfloat", "bf"), ("float", "f"), ("uint", "u"), ("int", "i"), ("complex", "c")):
        name = name.replace(long, short) if name.startswith(long) else name
    return name


class PyTreeDict(dict):
    """A dict with attribute access that is a pytree, for open collections: extras, info, metrics.

    `d.a` is `d["a"]`. Nested plain dicts become `PyTreeDict`. The order of insertion does not affect the tree. A key
    that is also a method of dict (`items`, `copy`, ...) is available only as `d["items"]`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.update(*args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(f"no entry {name!r}; entries: {', '.join(map(str, self)) or 'none'}") from None

    def __setattr__(self, name: str, value: Any) -> None:
        if hasattr(type(self), name):
            raise AttributeError(f"{name!r} is a method of {type(self).__name__}: use d[{name!r}] = ... instead")
        self[name] = value

    def __delattr__(self, name: str) -> None:
        try:
            del self[name]
        except KeyError:
            raise AttributeError(f"no entry {name!r}") from None

    def __setitem__(self, name: Any, value: Any) -> None:
        super().__setitem__(name, _with_nested_dicts(value))

    def update(self, *args: Any, **kwargs: Any) -> None:
        for name, value in dict(*args, **kwargs).items():
            self[name] = value

    def setdefault(self, name: Any, default: Any = None) -> Any:
        if name not in self:
            self[name] = default
        return self[name]

    def __or__(self, other: Mapping) -> Self:
        return type(self)({**self, **other})

    def __ior__(self, other: Any) -> Self:  # type: ignore[misc]
        self.update(other)
        return self

    def copy(self) -> Self:
        return type(self)(self)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these entries changed or added."""
        return type(self)({**self, **changes})

    def __repr__(self) -> str:
        return summary(self)


def _with_nested_dicts(value: Any) -> Any:
    if type(value) is dict:
        return PyTreeDict(value)
    if type(value) in (list, tuple):
        return type(value)(_with_nested_dicts(item) for item in value)
    return value


def _flatten_dict(bag: PyTreeDict) -> tuple[tuple, tuple]:
    names = tuple(sorted(bag))
    return tuple(bag[name] for name in names), names


def _flatten_dict_with_keys(bag: PyTreeDict) -> tuple[tuple, tuple]:
    names = tuple(sorted(bag))
    return tuple((DictKey(name), bag[name]) for name in names), names


def _unflatten_dict(names: tuple, children: Iterable) -> PyTreeDict:
    bag = PyTreeDict.__new__(PyTreeDict)
    dict.update(bag, zip(names, children, strict=True))
    return bag


jax.tree_util.register_pytree_with_keys(PyTreeDict, _flatten_dict_with_keys, _unflatten_dict, _flatten_dict)
jax.export.register_pytree_node_serialization(
    PyTreeDict,
    serialized_name="rookery.types.PyTreeDict",
    serialize_auxdata=lambda names: json.dumps(names).encode(),
    deserialize_auxdata=lambda encoded: tuple(json.loads(encoded.decode())),
)


def pytree_field(*, static: bool = False, **kwargs: Any) -> Any:
    """Declare a field of `PyTreeData` or `PyTreeNode`; static fields are part of the compiled program.

    Static values must be hashable. `kwargs` are arguments of `dataclasses.field`.
    """
    metadata = {**kwargs.pop("metadata", {}), "static": static}
    return dataclasses.field(metadata=metadata, **kwargs)


def _register_fields(cls: type) -> None:
    fields = dataclasses.fields(cls)
    data = tuple(field.name for field in fields if not field.metadata.get("static", False))
    static = tuple(field.name for field in fields if field.metadata.get("static", False))
    keys = tuple(GetAttrKey(name) for name in data)

    def flatten(instance: Any) -> tuple[tuple, tuple]:
        values = instance.__dict__
        return tuple(values[name] for name in data), tuple(values[name] for name in static)

    def flatten_with_keys(instance: Any) -> tuple[tuple, tuple]:
        children, static_values = flatten(instance)
        return tuple(zip(keys, children, strict=True)), static_values

    def unflatten(static_values: tuple, children: Any) -> Any:
        # Skips `__init__`: JAX also unflattens placeholders, which validation would reject.
        instance: Any = object.__new__(cls)
        instance.__dict__.update(zip(data, children, strict=True))
        instance.__dict__.update(zip(static, static_values, strict=True))
        return instance

    def serialize_static(static_values: tuple) -> bytes:
        try:
            return json.dumps(static_values).encode()
        except TypeError as error:
            raise TypeError(
                f"{cls.__qualname__} cannot be exported: its static fields ({', '.join(static)}) "
                f"must be numbers, strings or tuples of them; {error}"
            ) from None

    jax.tree_util.register_pytree_with_keys(cls, flatten_with_keys, unflatten, flatten)
    _register_for_export(
        cls,
        serialize_auxdata=serialize_static,
        deserialize_auxdata=lambda encoded: tuple(map(_lists_to_tuples, json.loads(encoded.decode()))),
    )


def _register_for_export(cls: type, **serialization: Any) -> None:
    """Register `cls` with `jax.export` under its full name; a redefinition (notebook cell) gets a number appended."""
    full_name = f"{cls.__module__}.{cls.__qualname__}"
    for attempt in itertools.count(1):
        name = full_name if attempt == 1 else f"{full_name}#{attempt}"
        try:
            jax.export.register_pytree_node_serialization(cls, serialized_name=name, **serialization)
            return
        except ValueError:
            continue


def _lists_to_tuples(value: Any) -> Any:
    return tuple(map(_lists_to_tuples, value)) if isinstance(value, list) else value


def _allow_derived_fields(cls: type, derived: set[str]) -> None:
    """Allow `__post_init__` to assign the derived fields of a frozen dataclass, and check that it does."""
    generated_init = cls.__init__  # type: ignore[misc]
    frozen_setattr = cls.__setattr__

    def init(self: Any, **kwargs: Any) -> None:
        object.__setattr__(self, "_under_construction", True)
        try:
            generated_init(self, **kwargs)
        finally:
            object.__delattr__(self, "_under_construction")
        unset = derived - self.__dict__.keys()
        if unset:
            raise TypeError(f"{cls.__qualname__}.__post_init__ did not set {', '.join(sorted(unset))}")

    def set_attribute(self: Any, name: str, value: Any) -> None:
        if name in derived and "_under_construction" in self.__dict__:
            object.__setattr__(self, name, value)
        else:
            frozen_setattr(self, name, value)  # type: ignore[call-arg]

    functools.update_wrapper(init, generated_init)
    cls.__init__ = init  # type: ignore[misc]
    cls.__setattr__ = set_attribute  # type: ignore[assignment]


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(pytree_field, dataclasses.field))
class PyTreeData:
    """A frozen keyword-only dataclass that is a pytree: subclass it and annotate the fields.

    Instances are compared by identity; compare their leaves with `jax.tree`.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        dataclasses.dataclass(frozen=True, kw_only=True, eq=False, repr=False)(cls)
        _register_fields(cls)

    def __repr__(self) -> str:
        return summary(self)

    def replace(self, **changes: Any) -> Self:
        """Return a copy with these fields changed."""
        names = [field.name for field in dataclasses.fields(self) if field.init]  # type: ignore[arg-type]
        for name in changes:
            if name not in names:
                near = nearest_names(name, names)
                advice = f"did you mean {near[0]!r}?" if near else f"its fields are {', '.join(names)}."
                raise TypeError(f"{type(self).__name__} has no field {name!r}: {advice}")
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]


class PyTreeNode(PyTreeData):
    """A `PyTreeData` for logic (`Agent`, `Evaluator`, ...), which may have derived fields.

    `__post_init__` must set every field declared with `init=False`. Fields cannot be set afterwards.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        derived = {field.name for field in dataclasses.fields(cls) if not field.init}
        if derived:
            _allow_derived_fields(cls, derived)


class State(PyTreeData):
    """The base of training states: the random key of a run."""

    key: Key


Tree = TypeVar("Tree")
"""A pytree whose structure the result shares with the argument."""


def all_finite(tree: PyTree) -> bool:
    """Tell whether all floating-point leaves of a tree are finite; they are looked at on the host."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return all(bool(np.isfinite(np.asarray(leaf)).all()) for leaf in leaves)


def is_finite(tree: PyTree) -> Array:
    """Tell whether all floating-point leaves of a tree are finite, in compiled code."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jnp.inexact)]
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in leaves]))


def where_tree(condition: Array, if_true: Tree, if_false: Tree) -> Tree:
    """Select between two trees by a condition over their leading axes, random keys included."""

    def select(on_true: Array, on_false: Array) -> Array:
        on_true, on_false = jnp.asarray(on_true), jnp.asarray(on_false)
        mask = condition.astype(bool).reshape(condition.shape + (1,) * (on_true.ndim - condition.ndim))
        return jnp.where(mask, on_true, on_false)

    return jax.tree.map(select, if_true, if_false)


def index_tree(tree: Tree, index: Any) -> Tree:
    """Index every leaf: `leaf[index]`."""
    return jax.tree.map(lambda leaf: leaf[index], tree)
