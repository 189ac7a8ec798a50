"""Implement `muster plan`: what the autoscaler would do for a file of demands."""
