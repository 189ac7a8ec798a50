"""Implement `muster sim`: simulated clusters and simulated experiments."""
