"""Shows the nodes of a cluster that another tool runs."""
