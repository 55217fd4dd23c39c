"""Python environments: one interface, and one file per library."""
