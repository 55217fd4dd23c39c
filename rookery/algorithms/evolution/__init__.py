"""Evolutionary algorithms."""
