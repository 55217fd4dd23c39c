"""The routes of the protocol `/v1` and the fields of their messages, from which its page in the docs is generated."""

import re
from dataclasses import dataclass

from rookery.serving.tokens import Scope

EPISODE_ID = r"[A-Za-z0-9._:-]{1,64}"
POLICY_NAME = r"[^/?#]{1,192}"


@dataclass(frozen=True)
class Field:
    """A field of a request or an answer."""

    name: str
    type: str
    meaning: str


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    name: str
    method: str
    path: str
    scope: Scope | None
    """What a token must allow; None: no token is needed."""
    meaning: str
    request: tuple[Field, ...] = ()
    answer: tuple[Field, ...] = ()


START_FIELDS = (
    Field("episode", "string", f"its id, `{EPISODE_ID}`; without it the server makes one"),
    Field(
        "mode",
        "string",
        "`learn`: a policy learns from it; `watch`: a policy acts; `evaluate`: its return is an evaluation",
    ),
    Field("explore", "boolean", "whether actions are sampled, in an episode that does not learn"),
    Field(
        "policies",
        "object",
        "`{agent: policy}`, instead of those that agents have by default; 422 in training, where the run has them",
    ),
    Field("info", "object", "kept with the log of `rookery serve --log`; without one, ignored"),
    Field("lease", "number", "seconds of silence after which the episode is abandoned: 60, at most 3600"),
)
AGENT_FIELDS = (
    Field("obs", "array", "the observation to act on; without it only rewards are reported"),
    Field("reward", "number", "since the last observation; rewards add up"),
    Field("action", "array", "what the simulator did itself on `obs`: stored instead of the action of the policy"),
    Field("log_prob", "number", "the log-probability with which the simulator chose `action`"),
    Field("terminated", "boolean", "`obs` is the last one, and the task ended there"),
    Field("truncated", "boolean", "`obs` is the last one, and the episode could have gone on"),
    Field("info", "object", "numbers in its entry `episode_metrics` are recorded"),
)
STEP_FIELDS = (
    Field("seq", "integer", "the number of the step, from 0; without it a repeated request is not recognized"),
    *AGENT_FIELDS,
    Field(
        "agents", "object", "`{agent: {obs, reward, action, log_prob, terminated, truncated, info}}` for several agents"
    ),
)
ACT_FIELDS = (
    Field("obs", "array", "observations `[N, ...]`"),
    Field("explore", "boolean", "whether actions are sampled"),
    Field("carry", "list", "of a recurrent policy, from the answer before; absent where episodes begin"),
)
STEP_ANSWER = (
    Field("seq", "integer", "that of the request"),
    Field("action", "array", "what to do"),
    Field("actions", "object", "`{agent: action}` for several agents"),
    Field("version", "integer", "of the parameters that chose the action; it only grows"),
    Field("ended", "boolean", "true after the last observation"),
    Field("episode_return", "number", "the sum of all rewards, once the episode has ended"),
    Field("episode_length", "integer", "the number of steps, once the episode has ended"),
)
ROUTES = (
    Route("healthz", "GET", "/healthz", None, "whether the server lives and is ready; 503 while it loads or drains"),
    Route("metrics", "GET", "/metrics", Scope.READ, "metrics in the text format of Prometheus"),
    Route("protocol", "GET", "/v1", Scope.READ, "the default mode, agents with spaces and policies, limits"),
    Route("policy", "GET", "/v1/policies/{policy}", Scope.READ, "spaces and version of a policy; 404 in training"),
    Route(
        "act",
        "POST",
        "/v1/policies/{policy}/act",
        Scope.ACT,
        "actions without an episode; 404 in training",
        ACT_FIELDS,
        (
            Field("actions", "array", "actions `[N, ...]`"),
            Field("version", "integer", "of the parameters that chose them"),
            Field("carry", "list", "of a recurrent policy: give it with the next observations"),
        ),
    ),
    Route(
        "start",
        "POST",
        "/v1/episodes",
        Scope.ACT,
        "begin an episode",
        START_FIELDS,
        (
            Field("episode", "string", "its id"),
            Field("mode", "string", "as above"),
            Field("explore", "boolean", "whether actions are sampled"),
            Field("lease", "number", "in seconds"),
            Field("policies", "object", "`{agent: {policy, version}}`; empty in training, where the run assigns them"),
        ),
    ),
    Route(
        "status",
        "GET",
        "/v1/episodes/{id}",
        Scope.ACT,
        "where an episode is",
        (),
        (
            Field("seq", "integer", "of the last step; -1 before the first"),
            Field("answer", "object", "to that step; null while it is to come"),
            Field("seconds_left", "number", "of the lease"),
        ),
    ),
    Route("leave", "DELETE", "/v1/episodes/{id}", Scope.ACT, "leave it; `?keep=false` discards its complete steps too"),
    Route(
        "step", "POST", "/v1/episodes/{id}/step", Scope.ACT, "what happened; what to do", STEP_FIELDS, STEP_ANSWER
    ),
    Route(
        "steps",
        "POST",
        "/v1/steps",
        Scope.ACT,
        "steps of many episodes",
        (
            Field("steps", "list", "steps with the fields above and `episode`, each episode once"),
            Field("obs", "array", "observations `[N, ...]` of all steps, instead of one in each"),
        ),
        (Field("answers", "list", "in the same order: an answer or `{error}`"),),
    ),
)  # fmt: skip


def names_of(fields: tuple[Field, ...]) -> frozenset[str]:
    """Return the names of fields."""
    return frozenset(field.name for field in fields)


def _pattern(path: str) -> re.Pattern[bytes]:
    fields = re.escape(path).replace(r"\{policy\}", f"({POLICY_NAME})").replace(r"\{id\}", f"({EPISODE_ID})")
    return re.compile(fields.encode())


PATHS = [
    (_pattern(path), {route.method: route for route in ROUTES if route.path == path})
    for path in sorted({route.path for route in ROUTES}, key=lambda path: -path.count("{id}/"))
]
"""The routes of each path by method, the most frequent first."""


def find_routes(path: bytes) -> tuple[dict[str, Route], bytes]:
    """Return the routes of a path by method, none if it is unknown, and the name in it."""
    for pattern, routes in PATHS:
        if match := pattern.fullmatch(path):
            return routes, match[1] if pattern.groups else b""
    return {}, b""
