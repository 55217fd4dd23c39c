"""Exit codes; a run stopped by a signal exits with 128 + its number."""

SUCCESS, NOT_GOOD, ERROR, INTERRUPTED = 0, 1, 2, 130
