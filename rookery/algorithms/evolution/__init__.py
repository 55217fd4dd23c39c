"""Methods that evolve their agents."""
