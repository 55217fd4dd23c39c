"""Tools for testing environments, agents and methods."""
