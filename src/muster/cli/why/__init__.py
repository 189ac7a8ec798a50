"""`muster why`: why a node, a type or a demand is in its present state."""
