"""Tools for testing environments, agents and methods, ours and yours."""
