"""Prepares, runs, saves and restores an experiment."""
