"""Reads a Ray cluster for the autoscaler and reports to it, through its GCS."""
