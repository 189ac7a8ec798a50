"""Adapt running clusters to the ports of `muster.cluster`."""
