"""Implements `muster sim`: simulated clusters and simulated experiments."""
