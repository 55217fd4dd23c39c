"""Agents that methods share: a network that acts, and what learning asks of it."""
