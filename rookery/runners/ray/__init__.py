"""Runners as actors on Ray. `ray` is imported in this package alone: by `group` at once, by others when needed."""
