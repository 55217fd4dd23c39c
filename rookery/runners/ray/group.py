"""Runners on Ray: each is an actor, on this machine or on others."""

import copy
import itertools
import logging
import os
import re
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
import ray
from ray import exceptions as ray_errors

from rookery.errors import InvalidInputError, RookeryError, check_count
from rookery.runners.faults import Failed, FaultKind, Phase, shortened
from rookery.runners.groups.episodes import EpisodesRequest, EvaluationRequest, Handle, RandomRequest
from rookery.runners.groups.group import (
    PATIENCE,
    ActingSpec,
    Delivery,
    Description,
    FragmentRequest,
    Ready,
    Reply,
    Request,
    RunnerFailed,
    RunnerGroup,
    RunnerSpec,
    RunnerStart,
)
from rookery.runners.health import RestartPolicy
from rookery.runners.passed import PassedParts
from rookery.runners.ray.actor import Answer, Hello, RunnerActor, versions_here
from rookery.runners.ray.cluster import describe_waiting
from rookery.runners.ray.settings import RaySettings
from rookery.types import PyTree

logger = logging.getLogger(__name__)

START_TIMEOUT = 600.0
"""Seconds to make environments, to compile, and for the first request of a role."""
REQUEST = "request"
MIN_SAMPLE_TIMEOUT, SAMPLE_TIMEOUT_FACTOR = 60.0, 20.0
"""Without `sample_timeout` a request may take this many times as long as the slowest one so far."""
SHARED_JAX_SETTINGS = (
    "jax_default_prng_impl",
    "jax_default_matmul_precision",
    "jax_enable_x64",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
    "jax_numpy_rank_promotion",
    "jax_compilation_cache_dir",
    "jax_persistent_cache_min_compile_time_secs",
    "jax_persistent_cache_min_entry_size_bytes",
)
"""The settings of JAX that change numbers or speed; runners get those of this process."""
ROOM_SECONDS = 30.0
"""Seconds without room for an actor after which we say what it waits for; Ray says nothing."""
CAUSE_PATTERN = re.compile(
    r"(?:Worker exit detail:|RPC error:|its node has died. Node Id: \w+) "
    r"(.*?)(?: Some common causes| rpc_code|\.? The actor never ran|$)"
)
"""The part of Ray's text about an actor that is dead or unavailable that names the cause."""
NODE_DIED = "The actor died because its node has died"
"""What Ray says of an actor of a node that it has marked dead; the error has no field for it."""
MAX_TEXT_LENGTH = 300
UNREACHABLE_ERRORS = (ray_errors.ActorUnavailableError, ray_errors.ObjectLostError, ray_errors.NodeDiedError)


@dataclass(frozen=True)
class Stored:
    """A tree in Ray's object store."""

    ref: Any
    version: int


@dataclass
class Call:
    """A call of an actor that is under way."""

    method: str
    ref: Any
    begun: float | None = None
    """When it began, as far as is known; None while a call before it is under way."""
    timeout: float | None = None
    kind: str | None = None
    """What is sampled or played, for its usual time."""
    is_last: bool = False
    """Whether the runner is ready after it."""


@dataclass
class Slot:
    """One actor and its calls under way, in order."""

    actor: Any = None
    greeting: Hello | None = None
    """Where the actor is; None until it is placed."""
    begun: float = 0.0
    """When the actor was asked for."""
    calls: deque[Call] = field(default_factory=deque)

    @property
    def deadline(self) -> float | None:
        """When the call under way is overdue; None: never."""
        call = self.calls[0] if self.calls else None
        return None if call is None or call.begun is None or call.timeout is None else call.begun + call.timeout

    @property
    def is_waiting(self) -> bool:
        """Whether Ray has not found room for the actor yet."""
        return self.actor is not None and self.greeting is None


class RayRunners(RunnerGroup):
    """Runners that are actors of a Ray cluster, which is connected before.

    Ray restarts no actor: it would repeat the constructor with its old arguments, and so old seeds. The caller rebuilds
    a runner from the last state that it has delivered.
    """

    works_in_receive = False

    def __init__(
        self,
        spec: RunnerSpec,
        num_runners: int,
        settings: RaySettings,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        check_count("num_runners", num_runners)
        assert ray.is_initialized(), (
            "Ray is connected before: an actor would otherwise start one that anybody can reach"
        )
        self.num_runners = num_runners
        self.restart = RestartPolicy(max_restarts=spec.envs.env.runner.max_restarts)
        self._spec = spec
        self._passed = PassedParts.of(spec.envs.env)
        self._settings = settings
        self._clock = clock
        self._slots = [Slot() for _ in range(num_runners)]
        self._versions = itertools.count()
        self._description: Description | None = None
        self._failures: dict[int, Reply] = {}
        """The failures before `start`, for the first `receive`."""
        self._acting: Any = None
        self._has_told = False
        """Whether the log says what the actors wait for that have no room at present."""
        self._slowest: dict[str, float] = {}
        """The seconds of the slowest request, by kind."""
        self.samples_individuals = jax.default_backend() == "cpu" and not settings.num_gpus_per_env_runner
        self._actor_class = ray.remote(RunnerActor).options(
            num_cpus=settings.num_cpus_per_env_runner,
            num_gpus=settings.num_gpus_per_env_runner,
            resources=dict(settings.resources_per_env_runner),
            scheduling_strategy="SPREAD",
            max_restarts=0,
            max_task_retries=0,
        )

    def describe(self) -> Description:
        self._begin_missing()
        begun = self._clock()
        while self._description is None:
            self._failures |= self._next_replies(self._clock() + PATIENCE)
            failures = [reply for reply in self._failures.values() if isinstance(reply, RunnerFailed)]
            fatal = next((failure for failure in failures if failure.is_fatal), None)
            if fatal is not None or len(failures) == self.num_runners:
                raise (fatal or failures[0]).error()
            is_anybody_placed = any(slot.greeting for slot in self._slots)
            if not is_anybody_placed and self._clock() - begun > self._settings.wait_timeout:
                raise RookeryError(
                    f"no runner has found room for {self._settings.wait_timeout:g} seconds (ray.wait_timeout): "
                    f"{self._describe_waiting()}" + (f" One failed: {failures[0].message}" if failures else "")
                )
        return self._description

    def start(
        self, acting: ActingSpec, request: FragmentRequest | None = None, starts: Sequence[RunnerStart] = ()
    ) -> None:
        self._acting = ray.put(acting)
        self._begin_missing()
        for index in range(self.num_runners):
            if index not in self._failures:
                self._start(index, starts[index] if index < len(starts) else RunnerStart(), request)

    def put(self, tree: PyTree) -> Stored:
        return Stored(ray.put(jax.tree.map(np.asarray, tree)), next(self._versions))

    def send(self, index: int, request: Request) -> None:
        slot = self._slots[index]
        if slot.calls:
            raise InvalidInputError(f"runner {index} has a request under way: receive its reply first.")
        actor = slot.actor
        match request:
            case FragmentRequest():
                stored, kind = self._stored(request.agent_states), request.role
                ref = actor.sample.remote(request.role, stored.version, stored.ref)
            case EpisodesRequest():
                stored, kind = self._stored(request.plan), "episodes"
                ref = actor.play.remote(request.chunk, request.individuals, stored.version, stored.ref)
            case EvaluationRequest():
                stored, kind = self._stored(request.agent_states), "evaluation"
                ref = actor.evaluate.remote(
                    request.seed, request.num_episodes, request.chunk, stored.version, stored.ref
                )
            case RandomRequest():
                ref, kind = actor.play_at_random.remote(request), "random"
        slot.calls.append(Call(REQUEST, ref, self._clock(), timeout_of(self._settings, self._slowest.get(kind)), kind))

    def receive(self, timeout: float | None = None) -> dict[int, Reply]:
        replies, self._failures = self._failures, {}
        return replies or self._next_replies(None if timeout is None else self._clock() + timeout)

    def rebuild(self, index: int, start: RunnerStart, request: FragmentRequest | None = None) -> None:
        self._end(index)
        self._begin(index)
        self._start(index, start, request)

    def close(self) -> None:
        self._failures = {}
        for index in range(self.num_runners):
            self._end(index)

    # Actors.

    def _begin_missing(self) -> None:
        for index, slot in enumerate(self._slots):
            if slot.actor is None and index not in self._failures:
                self._begin(index)

    def _begin(self, index: int) -> None:
        """Start an actor. Its first call is answered when Ray has found room for it, which may take any time."""
        slot = self._slots[index]
        actor: Any = self._actor_class.remote()
        slot.actor, slot.begun = actor, self._clock()
        slot.calls = deque(
            [
                Call("hello", actor.hello.remote(variables_of(self._settings), jax_settings())),
                Call("describe", actor.describe.remote(self._spec, self._passed, index), timeout=START_TIMEOUT),
            ]
        )

    def _start(self, index: int, start: RunnerStart, request: FragmentRequest | None) -> None:
        """Send the agents; the runner is ready when it has compiled what `request` needs."""
        slot = self._slots[index]
        calls = [Call("start", slot.actor.start.remote(self._acting, start), timeout=START_TIMEOUT)]
        if request is not None:
            stored = self._stored(request.agent_states)
            ref = slot.actor.prepare.remote(request.role, stored.version, stored.ref)
            calls.append(Call("prepare", ref, timeout=START_TIMEOUT))
        calls[-1].is_last = True
        if not slot.calls:
            calls[0].begun = self._clock()
        slot.calls.extend(calls)

    def _end(self, index: int) -> None:
        """End an actor, whatever it does, and forget its calls: a late reply is never taken for another."""
        slot, self._slots[index] = self._slots[index], Slot()
        if slot.actor is not None:
            ray.kill(slot.actor)

    def _stored(self, handle: Handle) -> Stored:
        assert isinstance(handle, Stored), "trees are stored by put"
        return handle

    # Replies.

    def _next_replies(self, end: float | None) -> dict[int, Reply]:
        """Return the replies that arrive next, at the latest at the time `end`."""
        replies: dict[int, Reply] = {}
        while not replies and (end is not None or any(slot.calls for slot in self._slots)):
            self._wait(end)
            replies = self._arrived() | self._overdue()
            self._tell_waiting()
            if end is not None and self._clock() >= end:
                break
        return replies

    def _wait(self, end: float | None) -> None:
        """Wait until a call is answered or overdue, at most until `end`."""
        ends = [slot.deadline for slot in self._slots] + [end]
        until = min((end for end in ends if end is not None), default=None)
        refs = [slot.calls[0].ref for slot in self._slots if slot.calls]
        seconds = None if until is None else max(0.0, until - self._clock())
        if refs:
            ray.wait(refs, timeout=seconds)
        else:  # all have failed, and wait for their restart
            time.sleep(seconds or 0.0)

    def _arrived(self) -> dict[int, Reply]:
        """Return the replies to calls that are answered."""
        waiting = {slot.calls[0].ref: index for index, slot in enumerate(self._slots) if slot.calls}
        arrived = ray.wait(list(waiting), num_returns=len(waiting), timeout=0)[0] if waiting else []
        replies = {}
        for ref in arrived:
            index = waiting[ref]
            reply = self._reply_to(index, self._slots[index].calls[0])
            if isinstance(reply, RunnerFailed):
                self._end(index)  # it may be given up, and would keep its room
            if reply is not None:
                replies[index] = reply
        return replies

    def _reply_to(self, index: int, call: Call) -> Reply | None:
        """Return the reply to a call that is answered; None if it is a step of starting."""
        try:
            answer: Answer = ray.get(call.ref)
        except ray_errors.RayError as error:
            return as_failure(error, self._slots[index].greeting)
        value = answer.value
        if isinstance(value, RunnerFailed):
            return value
        slot = self._slots[index]
        slot.calls.popleft()
        if slot.calls:
            slot.calls[0].begun = self._clock()
        match call.method:
            case "hello":
                slot.greeting = value
                return check_versions(value.versions, value.node)
            case "describe":
                return self._check_description(value)
            case "start" | "prepare":
                return Ready() if call.is_last else None
        assert call.kind is not None, "a request has a kind"
        self._slowest[call.kind] = max(self._slowest.get(call.kind, 0.0), answer.seconds)
        return without_store(value) if isinstance(value, Delivery) else value

    def _tell_waiting(self) -> None:
        """Log what actors wait for that have had no room for long, once until all of those have it."""
        now = self._clock()
        are_waiting_long = any(slot.is_waiting and now - slot.begun >= ROOM_SECONDS for slot in self._slots)
        if are_waiting_long and not self._has_told:
            logger.warning(self._describe_waiting())
        self._has_told = are_waiting_long

    def _describe_waiting(self) -> str:
        num_up = sum(slot.greeting is not None for slot in self._slots)
        num_waiting = sum(slot.is_waiting for slot in self._slots)
        return describe_waiting(self._settings, num_up, num_waiting, self.num_runners)

    def _check_description(self, description: Description) -> RunnerFailed | None:
        """Keep the first description, and compare others with it."""
        if self._description is None:
            self._description = description
        if description == self._description:
            return None
        return failed(f"it has other environments: {description} instead of {self._description}.", is_fatal=True)

    def _overdue(self) -> dict[int, Reply]:
        """End the actors that do not answer in time."""
        now = self._clock()
        replies: dict[int, Reply] = {}
        for index, slot in enumerate(self._slots):
            if slot.deadline is not None and slot.deadline <= now:
                call = slot.calls[0]
                setting = "; ray.sample_timeout sets the limit" if call.method == REQUEST else ""
                self._end(index)
                replies[index] = failed(
                    f"it did not answer {call.method} for {call.timeout:g} s{setting}.", FaultKind.HUNG
                )
        return replies


def without_store(delivery: Delivery) -> Delivery:
    """Copy the state, which is kept for long: one array of a reply holds the whole reply in the object store."""
    return replace(delivery, report=replace(delivery.report, state=copy.deepcopy(delivery.report.state)))


def variables_of(settings: RaySettings) -> dict[str, str]:
    """Return the environment variables of an actor. Ray does not hide GPUs from actors that reserve none."""
    variables = {"NPROC": str(max(1, int(settings.num_cpus_per_env_runner)))}
    if settings.num_gpus_per_env_runner:
        variables["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    else:
        variables["JAX_PLATFORMS"] = "cpu"
    flags = os.environ.get("XLA_FLAGS")
    return variables | ({"XLA_FLAGS": flags} if flags else {})


def timeout_of(settings: RaySettings, slowest: float | None) -> float:
    """Return the seconds that a request may take; `slowest` are those of the slowest of its kind so far."""
    if settings.sample_timeout is not None:
        return settings.sample_timeout
    if slowest is None:
        return START_TIMEOUT
    return max(MIN_SAMPLE_TIMEOUT, SAMPLE_TIMEOUT_FACTOR * slowest)


def jax_settings() -> dict[str, Any]:
    """Return the settings of JAX for actors: those of this process, with dispatch in the calling thread."""
    shared = {name: jax.config.values[name] for name in SHARED_JAX_SETTINGS}
    return shared | {"jax_cpu_enable_async_dispatch": False}


def check_versions(versions: Mapping[str, str], node: str) -> RunnerFailed | None:
    """Return a failure if an actor computes with other versions than this process."""
    here = versions_here()
    differences = [
        f"{name} {versions.get(name)} instead of {version}"
        for name, version in here.items()
        if versions.get(name) != version
    ]
    if not differences:
        return None
    return failed(f"the runner on {node} has {', '.join(differences)}: install the same versions there.", is_fatal=True)


def as_failure(error: ray_errors.RayError, greeting: Hello | None = None) -> RunnerFailed:
    """Return the failure of an actor that Ray reports."""
    where = "" if greeting is None else f" {greeting.pid} on {greeting.node}"
    text = " ".join(str(error).split())
    if isinstance(error, ray_errors.RayTaskError):
        return failed(f"it raised: {shortened(text, MAX_TEXT_LENGTH)}")
    found = CAUSE_PATTERN.search(text)
    reason = shortened(found[1] if found else text, MAX_TEXT_LENGTH)
    if isinstance(error, UNREACHABLE_ERRORS) or NODE_DIED in text:
        return failed(f"its process{where} cannot be reached: {reason.removesuffix('.')}.", FaultKind.UNREACHABLE)
    return failed(f"its process{where} ended: {reason}", FaultKind.KILLED)


def failed(message: str, kind: FaultKind = FaultKind.RAISED, is_fatal: bool = False) -> RunnerFailed:
    """Return the failure of a runner that cannot tell it itself."""
    return RunnerFailed(Failed(kind, Phase.MAKE, message), message, is_fatal)
