"""Inheritance: what a member of a population takes over from a better one.

The class of a state names the fields in `inherited`. They are what was learned: parameters, statistics, optimizer
states and hyper-parameters. Keys, environments, buffers and counters stay with the member.
"""

from typing import Any

from rookery.types import PyTree, Tree


def inheritance(state: Any) -> PyTree:
    """Return the inherited part of a state: nested dicts of its inherited fields."""
    names = _inherited(state)
    return state if names is None else {name: inheritance(getattr(state, name)) for name in names}


def inherit(state: Tree, heritage: PyTree) -> Tree:
    """Return a state with the `inheritance` of another state."""
    names = _inherited(state)
    if names is None:
        return heritage
    return state.replace(**{name: inherit(getattr(state, name), heritage[name]) for name in names})  # type: ignore[attr-defined]


def _inherited(state: Any) -> tuple[str, ...] | None:
    """Return the inherited fields of a state; None if it is inherited as a whole."""
    return getattr(type(state), "inherited", None)
