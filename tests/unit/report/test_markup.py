"""Text becomes markup escaped, whichever way it comes in."""

import json
import re
from html.parser import HTMLParser

import pytest

from rookery.report.markup import Markup, element, join, script_data

HOSTILE = ["</script><script>alert(1)</script>", "\"' onload='alert(1)", "<!--", "a & b &lt; c", "]]>"]


class Collector(HTMLParser):
    """What a parser of HTML makes of markup: the tags, their attributes and the text."""

    def __init__(self, markup: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.text = ""
        self.feed(markup)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= dict(attrs)

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.parametrize("text", HOSTILE)
def test_text_stays_text_as_child_and_as_attribute(text: str) -> None:
    seen = Collector(element("td", text, [text], title=text))
    assert seen.tags == ["td"]
    assert seen.attributes == {"title": text}
    assert seen.text == 2 * text


@pytest.mark.parametrize("text", HOSTILE)
def test_json_for_scripts_cannot_leave_its_element(text: str) -> None:
    markup = script_data({text: [text, 1.5, None]})
    assert "<" not in re.fullmatch("<script[^>]*>(.*)</script>", markup, re.DOTALL).group(1)
    seen = Collector(markup)
    assert seen.tags == ["script"]
    assert json.loads(seen.text) == {text: [text, 1.5, None]}


def test_markup_is_not_escaped_again_and_nothing_is_left_out() -> None:
    assert element("p", element("b", "a<b"), None, 7) == "<p><b>a&lt;b</b>7</p>"
    assert join(["<", Markup("<br>"), ["&"]]) == "&lt;<br>&amp;"


def test_attributes_are_named_as_in_html() -> None:
    markup = element("img", class_="wide", aria_label="x", hidden=True, title=None, viewBox="0 0 1 1")
    assert markup == '<img class="wide" aria-label="x" hidden viewBox="0 0 1 1">'
