"""How policies act: compiled, in batches, behind connectors."""
