"""What methods learn with: the parts that several of them share, as free functions."""
