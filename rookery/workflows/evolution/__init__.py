"""Training with a population: evolution, and hybrids of evolution and gradient."""
