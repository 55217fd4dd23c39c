"""The report: one self-contained HTML page about one or several runs."""

from collections.abc import Sequence
from importlib import resources
from pathlib import Path

from rookery.errors import InvalidInputError
from rookery.report.loaded_run import LoadedRun, load_runs
from rookery.report.markup import Content, Markup, element
from rookery.report.sections import SECTIONS, Section, headline, learning_curves
from rookery.runs.directory import RunDirectory
from rookery.runs.files import write_output

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
"""Makes the browser block everything that is not part of the page."""


def write_report(runs: Sequence[RunDirectory], path: Path) -> Path:
    """Write the report on `runs` to `path` and return the path; several runs are compared."""
    if not runs:
        raise InvalidInputError("a report needs at least one run directory.")
    path.parent.mkdir(parents=True, exist_ok=True)
    page = render_page(load_runs(runs))
    # File names may contain bytes that are not valid text.
    write_output(path, page.encode("utf-8", "replace"))
    return path


def learning_curve_frame(run: RunDirectory) -> str:
    """Return the headline and the learning curves of a run as a frame for a notebook."""
    page = render_page(load_runs([run]), (headline, learning_curves))
    return element("iframe", srcdoc=page, style="width: 100%; height: 36rem; border: 0")


def render_page(runs: Sequence[LoadedRun], sections: Sequence[Section] = SECTIONS) -> str:
    """Return the text of the page."""
    title = runs[0].title if len(runs) == 1 else f"{len(runs)} runs compared"
    subtitle = runs[0].name if len(runs) == 1 else ", ".join(dict.fromkeys(run.title for run in runs))
    return make_page(title, subtitle, (section(runs) for section in sections))


def make_page(title: str, subtitle: str, sections: Content) -> str:
    """Return the text of a page with these sections."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=CONTENT_SECURITY_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} · Rookery"),
        element("style", _asset("page.css")),
    )
    body = element(
        "body",
        element("header", element("h1", title), element("p", subtitle)),
        element("main", sections),
        element("script", _asset("page.js")),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _asset(name: str) -> Markup:
    return Markup(resources.files("rookery.report").joinpath(name).read_text(encoding="utf-8"))
