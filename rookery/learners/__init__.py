"""Learners: what a method changes and how it learns, apart from environments and loops."""
