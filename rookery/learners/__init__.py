"""Learners: how a method updates its state from experience, without environments and loops."""
