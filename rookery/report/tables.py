"""Tables in boxes that scroll if they are wider than the page."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rookery.report.markup import Content, Markup, element, join

NOT_KNOWN = "—"


def table(
    label: str, header: Sequence[Content], rows: Iterable[Sequence[Content]], num_marked_rows: int = 0, class_: str = ""
) -> Markup:
    """Build a table whose rows start with a heading; the first `num_marked_rows` are marked as differing."""
    headings = element("thead", element("tr", (element("th", name, scope="col") for name in header)))
    body = []
    for number, (heading, *cells) in enumerate(rows):
        row = [element("th", heading, scope="row"), *(element("td", cell) for cell in cells)]
        body.append(element("tr", row, class_="differs" if number < num_marked_rows else None))
    content = element("table", headings if header else None, element("tbody", body))
    return element("div", content, class_=f"table-box {class_}".strip(), role="group", aria_label=label, tabindex=0)


def settings_by_group(settings: Mapping[str, Any], rest: str) -> Markup:
    """Show settings in one table per group, the part of a name before its last dot; `rest` is for names without dot."""
    groups: dict[str, list[Sequence[Content]]] = {}
    for name, value in settings.items():
        group, dot, name_in_group = name.rpartition(".")
        groups.setdefault(group if dot else rest, []).append([name_in_group, as_text(value)])
    largest_first = sorted(groups.items(), key=lambda group: -len(group[1]))
    boxes = (
        element("div", element("h3", group), table(group, (), rows), class_="group") for group, rows in largest_first
    )
    return element("div", boxes, class_="groups")


def settings_side_by_side(label: str, columns: Sequence[Content], settings: Sequence[Mapping[str, Any]]) -> Markup:
    """Show the settings of several runs in one table; those that differ come first and are marked."""
    differing = differing_names(settings)
    names = [*differing, *(name for name in _all_names(settings) if name not in differing)]
    rows = [[name, *(as_text(of_run[name]) if name in of_run else NOT_KNOWN for of_run in settings)] for name in names]
    note = f"{len(differing)} of {len(names)} entries differ; they come first, marked ≠."
    return join([element("p", note, class_="note"), table(label, ["", *columns], rows, num_marked_rows=len(differing))])


def differing_names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the settings that differ between runs."""
    absent = object()
    return [
        name
        for name in _all_names(settings)
        if any(of_run.get(name, absent) != settings[0].get(name, absent) for of_run in settings)
    ]


def flatten(mapping: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the entries of nested mappings under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in mapping.items():
        path = f"{prefix}{name}"
        flat |= flatten(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return flat


def as_text(value: Any) -> str:
    """Format a setting as in a config."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _all_names(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(name for of_run in settings for name in of_run))
