"""Simulate a cluster in virtual time, under the real controller."""
