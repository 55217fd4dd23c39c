"""JSON values to arrays of a space, exactly."""
