"""Prepare, run, save and restore an experiment."""
