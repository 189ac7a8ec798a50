"""`muster status`: the nodes, the demand and the reasons of a cluster."""
