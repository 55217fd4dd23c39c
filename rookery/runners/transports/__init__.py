"""Transports: where environments run, in this process or in others."""
