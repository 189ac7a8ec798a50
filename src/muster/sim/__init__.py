"""Deterministic simulation of a cluster: the real controller over a simulated cloud and runtime."""
