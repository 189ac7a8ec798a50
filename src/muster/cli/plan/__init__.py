"""`muster plan`: what the autoscaler would do with a file of demands."""
