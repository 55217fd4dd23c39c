"""Workflows: runs of a method, and how their training goes."""
