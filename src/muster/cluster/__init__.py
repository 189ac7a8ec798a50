"""Implement the autoscaler's domain: pure planning, and a loop over ports."""
