"""Agents that algorithms share."""
