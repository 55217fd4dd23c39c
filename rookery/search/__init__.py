"""Search for hyper-parameters: the space to search, and what a member of a population takes over from another."""

from rookery.search.inheritance import inherit, inheritance
from rookery.search.searches import Search, SearchHyperparameters, Selection, search_class
from rookery.search.space import Numbers, SearchRange, SearchSpace

__all__ = [
    "Numbers",
    "Search",
    "SearchHyperparameters",
    "SearchRange",
    "SearchSpace",
    "Selection",
    "inherit",
    "inheritance",
    "search_class",
]
