"""Environments that are Python objects: one interface, and one file per library."""
