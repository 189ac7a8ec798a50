"""Writes the result files of all trials."""
