"""Hybrids of evolution and gradient: how a strategy and a learner exchange individuals."""
