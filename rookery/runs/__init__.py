"""Runs on disk: their directory, checkpoints, log, timetable, and how they stop."""
