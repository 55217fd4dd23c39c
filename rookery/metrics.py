"""What evaluation reports."""

from rookery.types import Array, PyTreeData


class EvaluateMetric(PyTreeData):
    """One entry per episode: the (discounted) sum of its rewards and the number of its steps."""

    episode_returns: Array
    episode_lengths: Array
