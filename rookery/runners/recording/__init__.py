"""Recording: rows of fragments, or returns of episodes."""
