"""Acting: compiled policies in batches, and the connectors around them."""
