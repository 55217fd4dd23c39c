"""Searches for settings: trials that differ in numbers train side by side in one compiled program."""
