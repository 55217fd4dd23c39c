"""Errors and differences in the words of a report."""

import re
from collections.abc import Callable

import pytest

from rookery.cli.console import one_line
from rookery.testing.describe import describe_error


@pytest.mark.parametrize("describe_fn", [describe_error, one_line])
def test_an_assertion_without_a_message_is_told_by_its_place(describe_fn: Callable[[Exception], str]) -> None:
    is_open = False
    with pytest.raises(AssertionError) as raised:
        assert is_open
    error = AssertionError().with_traceback(raised.tb)
    assert re.fullmatch(r"AssertionError in test_describe\.py, line \d+: assert is_open", describe_fn(error))
