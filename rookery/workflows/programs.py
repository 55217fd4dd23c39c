"""Compiled programs: map a function of one seed and one device's share over all seeds and devices."""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from rookery.distributed import DEVICE_AXIS, SAME, SPLIT, check_memory
from rookery.distributed.memory import bytes_of_program
from rookery.learning.experience import Experience
from rookery.types import Array, PyTree, Tree

MAX_SHARED = 64
"""The number of compiled programs that later runs of this process can reuse."""
TOO_LARGE = "this run is too large, decrease the number of environments, seeds, steps, units, rows or individuals"


@dataclass(frozen=True)
class Layout:
    """Devices, seeds and compiler options; makes programs from functions of one seed and one device's share."""

    mesh: Mesh
    num_seeds: int = 1
    vectorize_seeds: bool = True
    """If True, vectorize seeds with `vmap`; otherwise loop over them."""
    enable_jit: bool = True
    compiler_options: Mapping[str, str] = field(default_factory=dict)

    @property
    def num_shares(self) -> int:
        """The number of devices that split the environments or individuals of one training."""
        return self.mesh.shape[DEVICE_AXIS]

    def program(
        self,
        function: Callable,
        in_specs: PyTree,
        out_specs: PyTree,
        donate: tuple[int, ...] = (),
        options: Mapping[str, str] | None = None,
    ) -> "Program":
        """Make a program of a function that each device runs on its share."""
        on_devices = self.over_devices(function, in_specs, out_specs)
        return Program(on_devices, self.enable_jit, donate, self.compiler_options if options is None else options)

    def seeds_of(self, tree: Tree) -> list[Tree]:
        """Bring a tree to the host and split it by seed."""
        tree = gather(tree)
        if self.num_seeds == 1:
            return [tree]
        return [jax.tree.map(lambda leaf, seed=seed: leaf[seed], tree) for seed in range(self.num_seeds)]

    def for_seeds(self, numbers: Tree) -> Tree:
        """Give every seed the same numbers, as float32 arrays."""
        shape = () if self.num_seeds == 1 else (self.num_seeds,)
        return jax.tree.map(lambda number: np.full(shape, number, np.float32), numbers)

    def over_seeds(self, function: Callable) -> Callable:
        """Map a function of one seed over the leading axis of all its arguments, if there are several seeds."""
        if self.num_seeds == 1:
            return function
        if self.vectorize_seeds:
            return jax.vmap(function)
        return lambda *args: jax.lax.map(lambda of_one_seed: function(*of_one_seed), args)

    def over_devices(self, function: Callable, in_specs: PyTree, out_specs: PyTree) -> Callable:
        """Run a function on every device, each with its share of the arrays that are split."""
        return jax.shard_map(
            function,
            mesh=self.mesh,
            in_specs=self._with_seeds(in_specs),
            out_specs=self._with_seeds(out_specs),
            check_vma=False,  # it would require marking arrays that start as constants, such as counters of an env
        )

    def place(self, tree: Tree, specs: PyTree) -> Tree:
        """Put host arrays onto the devices by `specs`."""

        def put(spec: PartitionSpec, subtree: Tree) -> Tree:
            sharding = NamedSharding(self.mesh, spec)
            return jax.tree.map(lambda leaf: _put(leaf, sharding), subtree)

        return jax.tree.map(put, self._with_seeds(specs), tree, is_leaf=is_spec)

    def move(self, tree: Tree, specs: PyTree) -> Tree:
        """Move arrays that are on devices already to those of `specs`."""

        def moved(spec: PartitionSpec, subtree: Tree) -> Tree:
            return jax.device_put(subtree, NamedSharding(self.mesh, spec))

        return jax.tree.map(moved, self._with_seeds(specs), tree, is_leaf=is_spec)

    def _with_seeds(self, specs: PyTree) -> PyTree:
        """Shift the split axis by one if the first axis is that of the seeds."""
        if self.num_seeds == 1:
            return specs
        return jax.tree.map(lambda spec: PartitionSpec(None, *spec) if len(spec) else spec, specs, is_leaf=is_spec)


def specs_of(cls: type[Tree], **specs: PyTree) -> Tree:
    """Make a tree of a class with partition specs in place of arrays."""
    return cls(**specs)


def experience_specs() -> Experience:
    """Return the partition specs of experience, which is split by environments."""
    return specs_of(Experience, trajectory=PartitionSpec(None, DEVICE_AXIS), first_carry=SPLIT, metrics=SAME)


def is_spec(node: object) -> bool:
    """Tell whether a node of a tree of specs is a spec."""
    return isinstance(node, PartitionSpec)


def _put(leaf: Array | np.ndarray, sharding: NamedSharding) -> jax.Array:
    """Place one array; every process places its own part, so this also works with several hosts."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        data = np.asarray(jax.random.key_data(leaf))
        return jax.random.wrap_key_data(_put(data, sharding), impl=jax.random.key_impl(leaf))
    array = np.asarray(leaf)
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def gather(tree: Tree) -> Tree:
    """Bring all arrays of a tree to the host, also from other processes."""

    def fetch(leaf: Array) -> Array | np.ndarray:
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            data = fetch(jax.random.key_data(leaf))
            return jax.random.wrap_key_data(jnp.asarray(data), impl=jax.random.key_impl(leaf))
        if leaf.is_fully_addressable or leaf.is_fully_replicated:
            return np.asarray(leaf)
        from jax.experimental import multihost_utils

        return np.asarray(multihost_utils.process_allgather(leaf, tiled=True))

    return jax.tree.map(fetch, tree)


class Program:
    """A function that is compiled once for each set of argument shapes; `compile` returns the time of compiling.

    Runs of one process that differ only in traced numbers, as the trials of a sweep do, trace equal programs. They are
    compiled once.
    """

    def __init__(
        self,
        function: Callable,
        enable_jit: bool,
        donate: tuple[int, ...] = (),
        compiler_options: Mapping[str, str] | None = None,
    ) -> None:
        self._function = function
        self._options = donate, tuple(sorted((compiler_options or {}).items()))
        self._jitted = self._part_of_a_program = None
        if enable_jit:
            self._jitted = jax.jit(
                function, donate_argnums=donate, compiler_options=dict(compiler_options or {}) or None
            )
            self._part_of_a_program = jax.jit(function)  # the compiler options of the outer program apply
        self._compiled: dict[Hashable, Callable] = {}

    def is_ready(self, *args: PyTree) -> bool:
        """Return whether the program is compiled for arguments of these shapes."""
        return self._jitted is None or _signature(args) in self._compiled

    def bytes_needed(self, *args: PyTree) -> int:
        """Return a lower bound of the memory that a call with arguments of these shapes needs; nothing is compiled."""
        return 0 if self._jitted is None else bytes_of_program(self._jitted.trace(*args).jaxpr)

    def compile(self, *args: PyTree) -> float:
        """Compile for arguments of these shapes; return the seconds it took."""
        start = time.perf_counter()
        if self._jitted is not None:
            check_memory(TOO_LARGE, self.bytes_needed(*args))
            self._compiled[_signature(args)] = _compiled_once(self._jitted.lower(*args), args, self._options)
        return time.perf_counter() - start

    def __call__(self, *args: PyTree) -> PyTree:
        if self._part_of_a_program is None:
            return self._function(*args)
        if any(isinstance(leaf, jax.core.Tracer) for leaf in jax.tree.leaves(args)):
            return self._part_of_a_program(*args)
        return self.specialized(*args)(*args)

    def specialized(self, *args: PyTree) -> Callable:
        """Return the compiled program for arguments of these shapes; calling it skips the lookup by shapes."""
        if self._jitted is None:
            return self._function
        if not self.is_ready(*args):
            self.compile(*args)
        return self._compiled[_signature(args)]


def _signature(args: PyTree) -> Hashable:
    """Return the structure, shapes and dtypes of the arguments: the key of a compiled program."""
    leaves, structure = jax.tree.flatten(args)
    return structure, tuple(jax.typeof(leaf) for leaf in leaves)


_shared: OrderedDict[Hashable, Callable] = OrderedDict()
"""The compiled programs of this process by content, the last used ones last."""


def _compiled_once(lowered: jax.stages.Lowered, args: PyTree, options: Hashable) -> Callable:
    """Compile a program, unless an equal one is compiled: same instructions, constants, arguments and results."""
    text = lowered.as_text()
    has_constants = not getattr(jax.config, "jax_use_simplified_jaxpr_constants", False)
    if "callback" in text or not has_constants:  # the program depends on what its text does not contain
        return lowered.compile()
    places = tuple(getattr(leaf, "sharding", None) for leaf in jax.tree.leaves(args))
    content = hashlib.sha256(text.encode()).digest(), _signature(args), places, lowered.out_tree, options
    if content not in _shared:
        _shared[content] = lowered.compile()
    _shared.move_to_end(content)
    while len(_shared) > MAX_SHARED:
        _shared.popitem(last=False)
    return _shared[content]
