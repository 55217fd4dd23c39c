"""Containers survive every JAX transformation, stay frozen, and their trees depend on names alone."""

import copy
import dataclasses
import pickle
from typing import Any

import jax
import jax.export
import jax.numpy as jnp
import numpy as np
import pytest

from rookery.errors import InvalidInputError
from rookery.types import (
    Array,
    PyTreeData,
    PyTreeDict,
    PyTreeNode,
    State,
    as_key,
    as_mappable_key,
    make_key,
    pytree_field,
    where_tree,
)


class Inner(PyTreeData):
    weights: Array
    bag: PyTreeDict
    nothing: Any = None
    label: str = pytree_field(static=True, default="plain")
    sizes: tuple = pytree_field(static=True, default=())


class Outer(PyTreeData):
    inner: Inner
    pair: tuple
    count: Array


class Doubler(PyTreeNode):
    factor: float = pytree_field(static=True, default=1.0)
    offset: Array
    doubled: float = pytree_field(init=False, static=True)

    def __post_init__(self) -> None:
        self.doubled = 2 * self.factor

    def apply(self, x: Array) -> Array:
        return self.doubled * x + self.offset


def make_outer(label: str = "plain") -> Outer:
    bag = PyTreeDict({"b": jnp.arange(3.0), "a": {"deep": jnp.ones((3,))}})
    inner = Inner(weights=jnp.arange(3.0), bag=bag, label=label, sizes=(64, (2, "x")))
    return Outer(inner=inner, pair=(jnp.zeros((3,)), PyTreeDict(z=jnp.full((3,), 7.0))), count=jnp.arange(3))


def assert_same(actual: Any, expected: Any) -> None:
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    jax.tree.map(np.testing.assert_array_equal, actual, expected)


def increment(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf + 1, tree)


def test_key_paths_name_every_field_and_entry() -> None:
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(make_outer())]
    assert paths == [
        ".inner.weights",
        ".inner.bag['a']['deep']",
        ".inner.bag['b']",
        ".pair[0]",
        ".pair[1]['z']",
        ".count",
    ]


@pytest.mark.parametrize("transform", ["jit", "vmap", "scan", "cond", "donate", "export"])
def test_nested_containers_come_out_of_a_transformation_as_they_went_in(transform: str) -> None:
    given, expected = make_outer(), increment(make_outer())
    if transform == "jit":
        result = jax.jit(increment)(given)
    elif transform == "vmap":
        result = jax.vmap(increment)(given)
    elif transform == "scan":
        result, stacked = jax.lax.scan(lambda carry, _: (increment(carry), carry), given, length=1)
        assert_same(jax.tree.map(lambda leaf: leaf[0], stacked), make_outer())
    elif transform == "cond":
        result = jax.lax.cond(given.count[0] == 0, increment, lambda tree: tree, given)
    elif transform == "donate":
        result = jax.jit(increment, donate_argnums=0)(given)
        assert all(leaf.is_deleted() for leaf in jax.tree.leaves(given))
    else:
        exported = jax.export.export(jax.jit(increment))(given)
        result = jax.export.deserialize(exported.serialize()).call(given)
    assert_same(result, expected)
    assert type(result) is Outer
    assert type(result.inner.bag.a) is PyTreeDict
    assert (result.inner.label, result.inner.sizes, result.inner.nothing) == ("plain", (64, (2, "x")), None)


def test_a_logic_node_with_derived_fields_survives_jit_and_export() -> None:
    node, x = Doubler(factor=3.0, offset=jnp.ones(())), jnp.arange(4.0)

    def apply(node: Doubler, x: Array) -> Array:
        return node.apply(x) + jnp.full_like(x, node.doubled)

    expected = 6.0 * np.arange(4.0) + 1.0 + 6.0
    np.testing.assert_array_equal(jax.jit(apply)(node, x), expected)
    exported = jax.export.deserialize(jax.export.export(jax.jit(apply))(node, x).serialize())
    np.testing.assert_array_equal(exported.call(node, x), expected)


def test_a_workflow_state_carries_its_typed_key_through_jit() -> None:
    class TrainingState(State):
        step: Array

    state = TrainingState(key=jax.random.key(3), step=jnp.zeros((), jnp.int32))
    result = jax.jit(lambda state: state.replace(key=jax.random.fold_in(state.key, 1), step=state.step + 1))(state)
    assert result.step == 1
    assert jnp.array_equal(jax.random.key_data(result.key), jax.random.key_data(jax.random.fold_in(state.key, 1)))


def test_the_order_of_insertion_changes_neither_the_tree_nor_the_compiled_program() -> None:
    one, other = PyTreeDict(a=jnp.ones(()), b=jnp.zeros(())), PyTreeDict(b=jnp.zeros(()), a=jnp.ones(()))
    assert jax.tree.structure(one) == jax.tree.structure(other)
    num_traces = 0

    @jax.jit
    def difference(bag: PyTreeDict) -> Array:
        nonlocal num_traces
        num_traces += 1
        return bag.a - bag.b

    assert difference(one) == difference(other) == 1.0
    assert num_traces == 1
    assert_same(jax.tree.map(jnp.add, one, other), PyTreeDict(a=jnp.full((), 2.0), b=jnp.zeros(())))


def test_plain_dicts_become_attribute_dicts_however_they_are_put_in() -> None:
    plain = {"x": {"y": 1}}
    bag = PyTreeDict(plain, by_name={"z": 2})
    bag["item"] = plain
    bag.attribute = plain
    bag.update(updated=plain)
    bag |= {"merged": plain}
    assert bag.setdefault("default", plain).x.y == 1
    bag.listed = [plain, (plain,)]
    entries = [bag, bag.item, bag.attribute, bag.updated, bag.merged, bag.default, bag.listed[0], bag.listed[1][0]]
    assert all(type(entry.x) is PyTreeDict and entry.x.y == 1 for entry in entries)
    assert bag.by_name.z == 2
    assert type(bag.replace(x={"y": 3}).x) is PyTreeDict
    assert type((bag | {"x": {"y": 3}}).x) is PyTreeDict
    assert plain == {"x": {"y": 1}}
    assert type(plain["x"]) is dict


def test_replace_and_copy_leave_the_original_as_it_is() -> None:
    bag = PyTreeDict(a=1, b=2)
    assert bag.replace(b=3, c=4) == {"a": 1, "b": 3, "c": 4}
    copied = bag.copy()
    copied.a = 9
    assert bag == {"a": 1, "b": 2}
    assert type(copied) is PyTreeDict
    outer = make_outer()
    assert outer.replace(count=5).count == 5
    np.testing.assert_array_equal(outer.count, np.arange(3))


def test_an_entry_that_clashes_with_a_dict_method_is_reached_by_item_only() -> None:
    bag = PyTreeDict(items=1, replace=2)
    assert (bag["items"], bag["replace"]) == (1, 2)
    assert callable(bag.items)
    assert bag.replace(a=3)["replace"] == 2
    with pytest.raises(AttributeError, match=r"'items'.*d\['items'\]"):
        bag.items = 5
    assert jax.jit(lambda bag: bag["items"] + bag["replace"])(bag) == 3


def test_a_missing_entry_raises_an_attribute_error_that_lists_those_there_are() -> None:
    bag = PyTreeDict(reward=1, done=2)
    with pytest.raises(AttributeError, match=r"'rewards'.*reward, done"):
        _ = bag.rewards
    with pytest.raises(AttributeError, match="'rewards'"):
        del bag.rewards
    del bag.done
    assert not hasattr(bag, "done")
    assert getattr(bag, "done", 7) == 7


@pytest.mark.parametrize("duplicate", [copy.deepcopy, copy.copy, lambda tree: pickle.loads(pickle.dumps(tree))])
def test_containers_can_be_copied_and_sent_to_other_processes(duplicate: Any) -> None:
    outer = make_outer(label="kept")
    result = duplicate(outer)
    assert result is not outer
    assert_same(result, outer)
    assert type(result.inner.bag.a) is PyTreeDict
    assert duplicate(Doubler(factor=2.0, offset=jnp.ones(()))).doubled == 4.0
    assert type(duplicate(PyTreeDict(a={"b": 1}))) is PyTreeDict


def test_deepcopy_shares_no_dict_with_the_original() -> None:
    bag = PyTreeDict(a={"b": 1})
    copied = copy.deepcopy(bag)
    copied.a.b = 2
    assert bag.a.b == 1


@pytest.mark.parametrize("name", ["weights", "label", "unheard_of"])
def test_assigning_or_deleting_a_field_of_data_raises(name: str) -> None:
    inner = make_outer().inner
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(inner, name, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        delattr(inner, name)


@pytest.mark.parametrize("name", ["factor", "offset", "doubled", "unheard_of"])
def test_nothing_of_a_node_can_be_set_after_it_is_built(name: str) -> None:
    node = Doubler(offset=jnp.ones(()))
    rebuilt = jax.tree.unflatten(jax.tree.structure(node), jax.tree.leaves(node))
    for instance in (node, rebuilt, node.replace(factor=5.0), copy.deepcopy(node)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(instance, name, 1)


@pytest.mark.parametrize("name", ["size", "unheard_of"])
def test_post_init_may_set_derived_fields_only(name: str) -> None:
    class Overreaching(PyTreeNode):
        size: int = pytree_field(static=True)
        area: int = pytree_field(init=False, static=True)

        def __post_init__(self) -> None:
            self.area = self.size**2
            setattr(self, name, 1)

    with pytest.raises(dataclasses.FrozenInstanceError):
        Overreaching(size=3)


def test_a_derived_field_that_post_init_forgets_is_an_error_that_names_it() -> None:
    class Forgetful(PyTreeNode):
        area: int = pytree_field(init=False, static=True)

    with pytest.raises(TypeError, match="area"):
        Forgetful()


def test_derived_fields_are_inherited_and_follow_a_replace() -> None:
    class Quadrupler(Doubler):
        quadrupled: float = pytree_field(init=False, static=True)

        def __post_init__(self) -> None:
            super().__post_init__()
            self.quadrupled = 2 * self.doubled

    node = Quadrupler(factor=1.0, offset=jnp.ones(())).replace(factor=3.0)
    assert (node.factor, node.doubled, node.quadrupled) == (3.0, 6.0, 12.0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        node.quadrupled = 1.0


def test_replace_refuses_unknown_and_derived_fields_and_offers_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"'weight'.*'weights'"):
        make_outer().inner.replace(weight=1)
    with pytest.raises(TypeError, match="doubled"):
        Doubler(offset=jnp.ones(())).replace(doubled=1.0)


def test_fields_are_keyword_only_and_required_unless_they_have_a_default() -> None:
    with pytest.raises(TypeError, match="positional"):
        Inner(jnp.ones(()), PyTreeDict())
    with pytest.raises(TypeError, match="bag"):
        Inner(weights=jnp.ones(()))


def test_a_static_field_is_part_of_the_compiled_program_and_a_data_field_is_not() -> None:
    traced_labels = []

    @jax.jit
    def run(inner: Inner) -> Array:
        traced_labels.append(inner.label)
        return inner.weights

    inner = make_outer().inner
    run(inner)
    run(inner.replace(weights=inner.weights + 1))
    run(inner.replace(label="other"))
    run(inner.replace(label="other", sizes=inner.sizes))
    assert traced_labels == ["plain", "other"]


def test_export_refuses_a_static_field_it_cannot_write_and_names_it() -> None:
    class WithFunction(PyTreeData):
        x: Array
        activation: Any = pytree_field(static=True, default=jnp.tanh)

    with pytest.raises(TypeError, match=r"WithFunction.*activation"):
        jax.export.export(jax.jit(lambda tree: tree.x))(WithFunction(x=jnp.ones(()))).serialize()


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_legacy_keys_draw_the_same_numbers_as_typed_ones(impl: str) -> None:
    with jax.default_prng_impl(impl):
        legacy = jax.random.PRNGKey(5)
    typed = make_key(5, impl)
    for given in (legacy, np.asarray(legacy), typed):
        assert jnp.array_equal(jax.random.bits(as_key(given), (4,)), jax.random.bits(typed, (4,)))
    batch = as_key(jnp.stack([legacy, legacy]))
    assert batch.shape == (2,)
    assert jax.jit(as_key)(legacy).shape == ()


@pytest.mark.parametrize(
    "given",
    [
        3,
        None,
        "key",
        jnp.zeros((2,), jnp.int32),
        jnp.zeros((3,), jnp.uint32),
        jnp.zeros((), jnp.uint32),
        jnp.ones((2,)),
    ],
    ids=str,
)
def test_what_is_no_key_is_refused_with_the_way_to_make_one(given: Any) -> None:
    with pytest.raises(InvalidInputError, match=r"jax\.random\.key\(seed\)"):
        as_key(given)


def test_an_unknown_generator_is_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInputError, match=r"'mt19937'.*threefry2x32, rbg, unsafe_rbg"):
        make_key(0, "mt19937")


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_mappable_keys_draw_independently_for_each_element_under_vmap(impl: str) -> None:
    keys = as_mappable_key(jax.random.split(make_key(0, impl), 16))
    mapped = jax.vmap(lambda key: jax.random.bits(key, ()))(keys)
    single = jnp.stack([jax.random.bits(keys[index], ()) for index in range(16)])
    assert jnp.array_equal(mapped, single)
    assert len(np.unique(mapped)) == 16


def test_where_tree_selects_whole_entries_along_the_leading_axis_keys_included() -> None:
    ours = PyTreeDict(x=jnp.ones((3, 2)), key=jax.random.split(jax.random.key(0), 3))
    theirs = PyTreeDict(x=jnp.zeros((3, 2)), key=jax.random.split(jax.random.key(1), 3))
    chosen = where_tree(jnp.array([1.0, 0.0, 1.0]), ours, theirs)
    np.testing.assert_array_equal(chosen.x, [[1, 1], [0, 0], [1, 1]])
    expected_keys = [ours.key[0], theirs.key[1], ours.key[2]]
    for index, key in enumerate(expected_keys):
        assert jnp.array_equal(jax.random.key_data(chosen.key[index]), jax.random.key_data(key))


class Nested(PyTreeData):
    weights: Any
    inner: Any = None


@pytest.mark.parametrize(
    ("tree", "text"),
    [
        (PyTreeDict(a=jnp.zeros((64, 64)), b=np.int32(3)), "PyTreeDict(a=f32[64,64], b=i32[])"),
        (Nested(weights=[jnp.zeros(2, bool), jax.random.key(0)]), "Nested(weights=[bool[2], key<fry>[]], inner=None)"),
        (Nested(weights=jnp.zeros((), jnp.bfloat16), inner=np.sin), "Nested(weights=bf16[], inner=sin)"),
        (Nested(weights={"w": (1.5, "text")}), "Nested(weights={w: (1.5, 'text')}, inner=None)"),
    ],
)
def test_a_tree_prints_shapes_instead_of_arrays(tree: Any, text: str) -> None:
    assert repr(tree) == text


def test_a_large_tree_prints_one_short_line() -> None:
    layer = PyTreeDict(
        {f"layer_{index}": PyTreeDict(kernel=jnp.zeros((9, 9)), bias=jnp.zeros(9)) for index in range(50)}
    )
    deep: Any = Nested(weights=layer, inner="several\nlines")
    for _ in range(30):
        deep = Nested(weights=layer, inner=deep)
    text = repr(deep)
    assert text.startswith("Nested(weights=PyTreeDict(layer_0=PyTreeDict(")
    assert "inner=Nested(" in text
    assert len(text) <= 220
    assert "\n" not in text


def test_a_traced_tree_can_be_printed() -> None:
    printed = []
    jax.jit(lambda tree: printed.append(repr(tree)))(PyTreeDict(a=jnp.zeros(3)))
    assert printed == ["PyTreeDict(a=f32[3])"]
