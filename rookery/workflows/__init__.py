"""Workflows: runs of a method, and the training loops on the device and on the host."""
