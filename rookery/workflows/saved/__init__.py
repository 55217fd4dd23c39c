"""What workflows keep in a run directory, and how they read it."""
