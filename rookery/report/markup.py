"""HTML elements; text is escaped in one place."""

import html
import json
from collections.abc import Iterable
from typing import Any

VOID_TAGS = frozenset({"img", "link", "meta"})


class Markup(str):
    """Text that is already HTML; other strings are escaped when they become part of an element."""


Content = str | int | None | Iterable["Content"]
"""The content of an element: markup, text, numbers, None for nothing, or an iterable of them."""


def element(tag: str, *children: Content, **attributes: Any) -> Markup:
    """Build one element: `element("td", value, class_="number")`.

    Underscores in the names of attributes become hyphens; one at the end is dropped. Attributes that are None are
    omitted; those that are True have no value.
    """
    opening = "".join([tag, *(_attribute(name, value) for name, value in attributes.items())])
    return Markup(f"<{opening}>" if tag in VOID_TAGS else f"<{opening}>{join(children)}</{tag}>")


def join(content: Content) -> Markup:
    """Turn content into markup."""
    match content:
        case None:
            return Markup("")
        case Markup():
            return content
        case str() | int():
            return Markup(html.escape(str(content)))
        case _:
            return Markup("".join(map(join, content)))


def script_data(value: Any) -> Markup:
    """Embed JSON for a script of the page, escaped so that it cannot close its element."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    return Markup(f'<script type="application/json">{text}</script>')


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    name = name.rstrip("_").replace("_", "-")
    return f" {name}" if value is True else f' {name}="{html.escape(str(value))}"'
