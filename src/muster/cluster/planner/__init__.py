"""Plan where demand goes: onto existing nodes, nodes on their way and new nodes. Values in, values out."""
