"""Writes docs/reference/serving-protocol.md from what the server declares: `python docs/protocol_page.py`."""

from dataclasses import fields
from pathlib import Path

from rookery.configuration import declarations
from rookery.runners.envs.episode_messages import Code
from rookery.serving.limits import Limits
from rookery.serving.messages import STATUSES
from rookery.serving.routes import ROUTES, Field, Route

PAGE = Path(__file__).parent / "reference" / "serving-protocol.md"
HEAD = """\
# The serving protocol

Here you find every request that a policy server answers. `python docs/protocol_page.py` writes this page from
`rookery/serving/routes.py`. [Serve a policy](../how-to/serve.md) and
[simulators over HTTP](../how-to/simulators-over-http.md) show how to use it.

HTTP/1.1 with JSON bodies. A token goes into the header `Authorization: Bearer TOKEN`. Within `/v1`, fields are only
added: ignore fields that you do not know. The server refuses fields that it does not know.

An array is a nested list of numbers in the shape of its space, or `{"dtype": "uint8", "shape": [84, 84, 4], "base64":
"..."}` with the little-endian bytes of its numbers. Nothing is converted: a string, `true` or `null` is no number,
`1.0` is no integer, and a number that the dtype cannot hold is refused.
"""
ERRORS = """\
## Errors

```
{"error": {"code": "shape", "message": "obs has shape [3]; expected [4]", "where": "obs", "id": "7f3a"}}
```

Repeat the same request after 408, 429, 503 and broken connections, after a growing delay. All other refusals are final.
A step with the same `seq` and the same content is the same step: it is taken in once, and has the same answer.
"""


def page() -> str:
    """Return the text of the page."""
    table = [["method and path", "a token needs", "what"], ["---"] * 3]
    table += [[f"`{route.method} {route.path}`", scope_of(route), route.meaning] for route in ROUTES]
    parts = [HEAD, "## Requests\n", rows(table)]
    parts += [section(route) for route in ROUTES if route.request or route.answer]
    refusals = [["code of an episode", "status"], ["---"] * 2]
    refusals += [[f"`{code}`", str(STATUSES[code])] for code in Code]
    parts += [ERRORS, rows(refusals), "## Limits\n", rows(limits())]
    return "\n".join(parts)


def section(route: Route) -> str:
    """Return the fields of a route."""
    parts = [f"## {route.method} {route.path}\n", f"{route.meaning[0].upper()}{route.meaning[1:]}.\n"]
    for title, declared in (("Request", route.request), ("Answer", route.answer)):
        if declared:
            parts += [f"{title}:\n", fields_table(declared)]
    return "\n".join(parts)


def fields_table(declared: tuple[Field, ...]) -> str:
    lines = [["field", "type", "meaning"], ["---"] * 3]
    return rows(lines + [[f"`{field.name}`", field.type, field.meaning] for field in declared])


def limits() -> list[list[str]]:
    meanings = declarations(Limits)
    lines = [[f"`{field.name}`", f"{field.default:,}", meanings[field.name].help] for field in fields(Limits)]
    return [["limit", "default", "of what"], ["---"] * 3, *lines]


def scope_of(route: Route) -> str:
    return f"`{route.scope}`" if route.scope else "no token"


def rows(cells: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in cells) + "\n"


if __name__ == "__main__":
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page())
