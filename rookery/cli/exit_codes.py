"""What a command tells the shell; a run that was stopped by a signal ends with 128 + its number."""

SUCCESS, NOT_GOOD, ERROR, INTERRUPTED = 0, 1, 2, 130
