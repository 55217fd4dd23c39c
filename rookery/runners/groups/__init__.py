"""Groups of runners: what they are asked for, who is up, and what is done again."""
