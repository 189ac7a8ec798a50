"""Adapters from a running cluster to the ports of `muster.cluster`."""
