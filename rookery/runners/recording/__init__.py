"""How rows are recorded: fragments of time-major arrays, episode by episode."""
