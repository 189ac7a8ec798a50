"""Simulate clusters and experiments deterministically, under the real controllers."""
