"""Environments that are Python objects, may raise, hang, be killed or lie; and the runner that samples from them."""
