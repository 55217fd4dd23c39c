"""The metrics of a server: plain counters, read as Prometheus text or as numbers of a record."""

import logging
import secrets
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from rookery.errors import missing_extra
from rookery.runners.envs.episode_messages import Stage
from rookery.serving.messages import ApiError, Object

try:
    from prometheus_client import CollectorRegistry, generate_latest
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
    from prometheus_client.registry import Collector
except ImportError:
    raise missing_extra("prometheus-client", "serve") from None

SECONDS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
FATES = ("steps", "repeated")
OUTCOMES = ("started", Stage.ENDED, Stage.LEFT, Stage.EXPIRED, Stage.LOST)

logger = logging.getLogger(__name__)


class Histogram:
    """Counts of numbers by size."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def add(self, number: float) -> None:
        self._counts[bisect_left(self._bounds, number)] += 1
        self.sum += number

    def buckets(self) -> list[tuple[str, float]]:
        """Return how many numbers are at most as large as each bound."""
        total, buckets = 0, []
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class Metrics(Collector):
    """What a server counts. Labels come from fixed sets, never from clients."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        """Requests by route and status."""
        self.refusals: Counter[str] = Counter()
        """Refused requests by code; closed connections by the limit that closed them."""
        self.reloads: Counter[str] = Counter()
        """Reloads of policies by outcome."""
        self.seconds = Histogram(SECONDS)
        """Seconds per request."""
        self.rows = Histogram(ROWS)
        """Rows per batch in which a policy acted."""
        self.connections = 0
        self.num_outside: Callable[[], int] = int
        """Reads the number of values in observations that were outside of the bounds of their space."""
        self.num_faulty = 0
        """Rows for which a policy gave an action that is not finite."""
        self.log_failures = 0
        """Failures to write the log of episodes: after one, logging stops."""
        self.episode_counts: Callable[[], Mapping[str, int]] = dict
        """Reads what the episode book counts."""
        self.gauges: dict[str, Callable[[], float]] = {}
        """Numbers that are read when they are asked for, by name."""
        self.versions: Callable[[], Mapping[str, tuple[int, float]]] = dict
        """Reads version and age in seconds of each policy."""
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)

    def refuse(self, error: ApiError) -> Object:
        """Count a refusal; return it as JSON, with an id that the log has too."""
        error_id = secrets.token_hex(4)
        self.refusals[error.code] += 1
        logger.debug("request %s: %s, %s", error_id, error.code, error.message)
        return error.to_json(error_id)

    def text(self) -> bytes:
        """Return all metrics in the format of Prometheus."""
        return generate_latest(self._registry)

    def record(self) -> dict[str, float]:
        """Return the main numbers for the record of a run, in any thread."""
        refused = {f"refused/{code}": count for code, count in list(self.refusals.items())}
        counts = {
            "requests": sum(list(self.requests.values())),
            "connections": self.connections,
            "outside": self.num_outside(),
        }
        episodes = self.episode_counts()
        return {**counts, **{name: episodes.get(name, 0) for name in (*OUTCOMES, *FATES)}, **refused}

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily("rookery_requests", "Requests by route and status.", labels=["route", "status"])
        for (route, status), count in list(self.requests.items()):
            requests.add_metric([route, str(status)], count)
        yield requests
        yield _histogram("rookery_request_seconds", "Seconds from a request to its answer.", self.seconds)
        yield _histogram("rookery_batch_rows", "Observations on which a policy acted at a time.", self.rows)
        yield _counter("rookery_refusals", "Refused requests and closed connections.", "code", self.refusals)
        counts = self.episode_counts()
        outcomes = {stage: counts.get(stage, 0) for stage in OUTCOMES}
        yield _counter("rookery_episodes", "Episodes by what became of them.", "outcome", outcomes)
        fates = {fate: counts.get(fate, 0) for fate in FATES}
        yield _counter("rookery_steps", "Steps of episodes; requests that repeat one.", "fate", fates)
        yield _counter("rookery_reloads", "Reloads of the policies.", "outcome", self.reloads)
        for name, number in self._numbers().items():
            yield GaugeMetricFamily(f"rookery_{name}", f"{name.replace('_', ' ').capitalize()}.", number)
        version = GaugeMetricFamily("rookery_policy_version", "The version that acts.", labels=["policy"])
        age = GaugeMetricFamily("rookery_policy_age_seconds", "How long it has acted.", labels=["policy"])
        for policy, (number, since) in self.versions().items():
            version.add_metric([policy], number)
            age.add_metric([policy], time.time() - since)
        yield version
        yield age

    def _numbers(self) -> dict[str, float]:
        own = {
            "connections": self.connections,
            "outside_bounds": self.num_outside(),
            "policy_faults": self.num_faulty,
            "log_failures": self.log_failures,
        }
        return own | {name: read() for name, read in self.gauges.items()}


def _counter(name: str, help_text: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, help_text, labels=[label])
    for value, count in list(counts.items()):
        family.add_metric([value], count)
    return family


def _histogram(name: str, help_text: str, histogram: Histogram) -> Metric:
    family = HistogramMetricFamily(name, help_text)
    family.add_metric([], histogram.buckets(), histogram.sum)
    return family
