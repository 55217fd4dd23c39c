"""Methods that train a population of members of any other method."""
