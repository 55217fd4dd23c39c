"""Population-based training: members train with hyper-parameters of their own, and take over from better ones."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from rookery.agent import AgentState
from rookery.configuration import field_names
from rookery.distributed import POPULATION_AXIS, SAME, SPLIT_MEMBERS, check_divides
from rookery.evaluators import Evaluator, PopulationEvaluator
from rookery.hyperparameters import Hyperparameters, values_at
from rookery.learning.counter import Counter
from rookery.metrics import Latest, Mean, Metrics
from rookery.search import Numbers, Search, Selection, inherit, inheritance
from rookery.spaces import Space
from rookery.types import Array, Key, PyTree, Tree, index_tree, is_finite, where_tree
from rookery.workflows.population_state import MAX_ROUNDS, History, PopulationState, describe_history
from rookery.workflows.programs import Layout, is_spec, specs_of
from rookery.workflows.training import OnDevice, TrainingState, state_specs

PREFIX = "population/"
"""The prefix of the metrics of a population."""
QUANTILES = {"min": 0.0, "q25": 0.25, "median": 0.5, "q75": 0.75, "max": 1.0}
OF_NUMBERS = ("min", "median", "max")
"""The quantiles of a searched number that a record has."""


@dataclass(frozen=True)
class Rounds:
    """How a population trains: the parts of its config that have to do with rounds."""

    iterations_per_round: int
    warmup_rounds: int
    num_episodes: int
    num_lanes: int
    members_side_by_side: bool


class PopulationTraining(OnDevice):
    """Trains a population of members of one method; an iteration is a round.

    In a round every member makes some iterations, plays greedy episodes that all members start alike, and the search
    decides who takes over from whom. A member that diverged leaves NaN in its environments and replay buffer, so its
    heir starts without them. `member` is the training of one member on one device; its programs are not used. Members
    are split over the devices; only what is inherited travels between them.
    """

    member: OnDevice

    def __init__(
        self,
        member: OnDevice,
        member_hyperparameters: Hyperparameters,
        search: Search,
        hyperparameters: Hyperparameters,
        rounds: Rounds,
        layout: Layout,
        num_eval_episodes: int,
    ) -> None:
        self.member = member
        assert isinstance(member.evaluator, Evaluator), "the environments are on the device"
        self.agent, self.evaluator = member.agent, member.evaluator
        self.search, self.rounds, self.layout = search, rounds, layout
        self._member_hyperparameters, self._hyperparameters = member_hyperparameters, hyperparameters
        check_divides("agent.population_size", search.population_size, layout.mesh.shape[POPULATION_AXIS])
        self.evaluation = self._make_evaluation(num_eval_episodes, is_compiled=True)
        self.player = self._make_player(member.evaluator)
        self._make_programs(self._start, self._iterate)

    def _make_player(self, evaluator: Evaluator) -> PopulationEvaluator:
        agent, _ = self.agent.acting_part(self.agent_shape())
        return PopulationEvaluator(
            env=evaluator.env,
            agent_fn=agent.evaluate_actions,
            initial_carry_fn=agent.initial_carry,
            max_episode_steps=evaluator.max_episode_steps,
            num_lanes=min(self.rounds.num_lanes, self.share_size * self.rounds.num_episodes),
        )

    @property
    def share_size(self) -> int:
        """The number of members on a device."""
        return self.search.population_size // self.layout.mesh.shape[POPULATION_AXIS]

    @property
    def spaces(self) -> tuple[Space, Space]:
        return self.member.spaces

    def agent_shape(self) -> AgentState:
        return self.member.agent_shape()

    def specs(self) -> TrainingState:
        members = jax.tree.map(lambda _: SPLIT_MEMBERS, self.member.specs(), is_leaf=is_spec)
        same = dict.fromkeys(field_names(PopulationState), SAME)
        learner = specs_of(PopulationState, **{**same, "members": members})
        return state_specs(learner).replace(source_state=SAME)

    def counters(self, state: TrainingState) -> dict[str, Counter]:
        population = _population(state)
        return {
            "train/n_updates": population.num_updates,
            f"{PREFIX}num_heirs": population.num_heirs,
            f"{PREFIX}num_diverged": population.num_diverged,
        }

    def individuals(self, state: TrainingState) -> dict[str, AgentState]:
        of_members = _population(state).members.agent_state
        places: list[Any] = list(range(self.search.population_size))
        if self.layout.num_seeds > 1:
            places = [(slice(None), place) for place in places]
        members = {str(number): index_tree(of_members, place) for number, place in enumerate(places)}
        return super().individuals(state) | members

    def with_agent(self, state: TrainingState, agent_state: AgentState) -> TrainingState:
        """Let every member start with another agent."""
        changed = self._with_members(
            state, jax.vmap(self.member.with_agent, in_axes=(0, None), spmd_axis_name=POPULATION_AXIS), agent_state
        )
        return changed.replace_learner(agent_state=agent_state)

    def refill(self, state: TrainingState) -> TrainingState:
        return self._with_members(state, jax.vmap(self.member.refill, spmd_axis_name=POPULATION_AXIS))

    def _with_members(self, state: TrainingState, over_members: Callable, *args: PyTree) -> TrainingState:
        """Return a state whose members are those that a function of them returns, each on its device."""
        if self.layout.num_seeds > 1:
            over_members = jax.vmap(over_members)
        members = over_members(_population(state).members, *args)
        return self.layout.move(state.replace_learner(members=members), self.specs())

    def collect_seconds(self, state: TrainingState) -> float:
        """Time one member and multiply: the members of a device train one after the other."""
        first = jax.tree.map(lambda leaf: leaf[0], self.layout.seeds_of(_population(state).members)[0])
        seconds = self.member.collect_seconds(self.layout.place(first, SAME))
        return seconds * self.rounds.iterations_per_round * self.share_size * self.layout.num_seeds

    def populations(self, state: TrainingState) -> list[dict[str, Any]]:
        populations = self.layout.seeds_of(_population(state).replace(members=None))
        return [describe_history(population, self.search.space) for population in populations]

    # For one seed, on this device's share of the members.

    def _start(self, key: Key, hyperparameters: Hyperparameters) -> TrainingState:
        key, eval_key, members_key = jax.random.split(key, 3)
        size, search = self.search.population_size, self.search

        def start(key: Key) -> TrainingState:
            search_key, member_key = jax.random.split(key)
            numbers = search.space.sample(search_key)
            return self.member.start(member_key, search.space.with_numbers(self._member_hyperparameters, numbers))

        members = self._over_members(start, self._share(jax.random.split(members_key, size)))
        zero = Counter.zero()
        learner = PopulationState(
            agent_state=index_tree(gathered(members.agent_state), 0),
            hyperparameters=jax.tree.map(jnp.float32, hyperparameters),
            iterations=zero,
            env_steps=gathered(members.env_steps).sum(),
            num_updates=zero,
            members=members,
            fitness=jnp.full(size, jnp.nan, jnp.float32),
            best_member=jnp.zeros((), jnp.int32),
            search_state=search.init(),
            num_heirs=zero,
            num_diverged=zero,
            history=History.empty(search),
        )
        return TrainingState(key=key, eval_key=eval_key, learner=learner, source_state=())

    def _iterate(self, state: TrainingState) -> tuple[Metrics, TrainingState]:
        key, play_key, search_key = jax.random.split(state.key, 3)
        of_members, members = self._train(_population(state).members)
        fitness = gathered(self._fitness(members.agent_state, play_key))
        numbers = gathered(jax.vmap(self.search.space.numbers_of)(members.hyperparameters))
        selection = self._select(_population(state), numbers, fitness, search_key)
        best_member = jnp.argmax(jnp.where(jnp.isfinite(fitness), fitness, -jnp.inf)).astype(jnp.int32)
        population = self._after_round(_population(state), members, numbers, fitness, best_member, selection)
        metrics = combined(gathered(of_members)) | self._metrics(numbers, fitness, best_member)
        return metrics, state.replace(key=key, learner=population)

    def _train(self, members: TrainingState) -> tuple[Metrics, TrainingState]:
        """Let every member of this device make its iterations; return their metrics `[P]`."""
        if self.rounds.members_side_by_side:
            return jax.vmap(self._train_member)(members)
        shapes, _ = jax.eval_shape(self._train_member, index_tree(members, 0))
        nothing = jax.tree.map(lambda leaf: jnp.zeros((self.share_size, *leaf.shape), leaf.dtype), shapes)

        def train_next(index: Array, carry: tuple[Metrics, TrainingState]) -> tuple[Metrics, TrainingState]:
            trained = self._train_member(index_tree(carry[1], index))
            return jax.tree.map(lambda of_all, of_one: of_all.at[index].set(of_one), carry, trained)

        # A loop over the members in place: `lax.map` would hold every replay buffer twice.
        return jax.lax.fori_loop(0, self.share_size, train_next, (nothing, members))

    def _train_member(self, member: TrainingState) -> tuple[Metrics, TrainingState]:
        shapes, _ = jax.eval_shape(self.member.iterate, member)
        nothing = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        def iterate(_: Array, carry: tuple[Metrics, TrainingState]) -> tuple[Metrics, TrainingState]:
            new, member = self.member.iterate(carry[1])
            return added(carry[0], new), member

        return jax.lax.fori_loop(0, self.rounds.iterations_per_round, iterate, (nothing, member))

    def _fitness(self, agent_states: AgentState, key: Key) -> Array:
        """Return the mean returns of this device's members; NaN if the parameters are not finite."""
        acting = jax.vmap(lambda agent_state: self.agent.acting_part(agent_state)[1])(agent_states)
        returns = self.player.play(acting, key, self.rounds.num_episodes, paired=True).episode_returns
        return jnp.where(jax.vmap(is_finite)(agent_states), jnp.mean(returns, axis=1), jnp.nan)

    def _select(self, population: PopulationState, numbers: Numbers, fitness: Array, key: Key) -> Selection:
        hyperparameters = values_at(population.hyperparameters, population.env_steps.as_float())
        selection = self.search.select(numbers, fitness, population.search_state, hyperparameters, key)
        is_warm = population.iterations.low >= self.rounds.warmup_rounds
        return where_tree(is_warm, selection, self.search.unchanged(numbers, population.search_state))

    def _after_round(
        self,
        population: PopulationState,
        members: TrainingState,
        numbers: Numbers,
        fitness: Array,
        best_member: Array,
        selection: Selection,
    ) -> PopulationState:
        heritage = gathered(inheritance(members.learner))
        learners = jax.vmap(inherit)(members.learner, index_tree(heritage, self._share(selection.parents)))
        hyperparameters = jax.vmap(self.search.space.with_numbers)(
            learners.hyperparameters, self._share(selection.numbers)
        )
        is_heir = selection.parents != jnp.arange(self.search.population_size, dtype=jnp.int32)
        members = members.replace(learner=learners.replace(hyperparameters=hyperparameters))
        has_diverged = self._share(is_heir & ~jnp.isfinite(fitness))
        row = population.iterations.low % MAX_ROUNDS
        return population.replace(
            agent_state=index_tree(heritage["agent_state"], best_member),
            iterations=population.iterations.add(1),
            env_steps=gathered(members.env_steps).sum(),
            num_updates=gathered(members.num_updates).sum(),
            members=jax.vmap(self.member.restarted)(members, has_diverged),
            fitness=fitness,
            best_member=best_member,
            search_state=selection.search_state,
            num_heirs=population.num_heirs.add(jnp.sum(is_heir, dtype=jnp.int32)),
            num_diverged=population.num_diverged.add(jnp.sum(~jnp.isfinite(fitness), dtype=jnp.int32)),
            history=population.history.with_round(row, fitness, selection.parents, numbers),
        )

    def _metrics(self, numbers: Numbers, fitness: Array, best_member: Array) -> dict[str, Mean | Latest]:
        valid = jnp.where(jnp.isfinite(fitness), fitness, jnp.nan)
        metrics: dict[str, Mean | Latest] = {
            f"{PREFIX}fitness_{name}": Latest.of(jnp.nanquantile(valid, share)) for name, share in QUANTILES.items()
        }
        for name, values in numbers.items():
            for kind in OF_NUMBERS:
                metrics[f"{PREFIX}{name}_{kind}"] = Latest.of(jnp.quantile(values, QUANTILES[kind]))
        return metrics | {f"{PREFIX}best_member": Latest.of(best_member)}

    def _over_members(self, function: Callable[[Tree], PyTree], arguments: Tree) -> PyTree:
        """Map a function of one member over this device's members."""
        mapped = jax.vmap(function) if self.rounds.members_side_by_side else lambda own: jax.lax.map(function, own)
        return mapped(arguments)

    def _share(self, tree: Tree) -> Tree:
        """Return this device's share of a tree `[P, ...]` of all members."""
        first = jax.lax.axis_index(POPULATION_AXIS) * self.share_size
        return jax.tree.map(lambda leaf: jax.lax.dynamic_slice_in_dim(leaf, first, self.share_size), tree)


def gathered(tree: Tree) -> Tree:
    """Return the members of all devices as one tree `[P, ...]`."""
    return jax.lax.all_gather(tree, POPULATION_AXIS, tiled=True)


def added(metrics: Metrics, new: Metrics) -> Metrics:
    """Add the metrics of another iteration."""
    return {name: metric.add(new[name]) for name, metric in metrics.items()}  # type: ignore[arg-type]


def combined(metrics: Metrics) -> dict[str, Mean | Latest]:
    """Combine the metrics `[P]` of members; those that are not finite do not count, as their members do not."""
    return {name: metric.over_members() for name, metric in metrics.items()}


def _population(state: TrainingState) -> PopulationState:
    assert isinstance(state.learner, PopulationState), "the state of another training"
    return state.learner
