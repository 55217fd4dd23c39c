"""Training on host environments: runners collect, a compiled program learns."""
