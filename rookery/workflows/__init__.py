"""Workflows: the loops that carry a method from its first step to its last."""
