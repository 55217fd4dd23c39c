"""Experience on disk: logs of episodes."""
