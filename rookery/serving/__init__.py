"""Policies over HTTP: simulators in other processes and languages ask for actions, and their episodes train."""
