"""Implement `muster status`: the machines, the waiting requests and the reasons of a cluster."""
