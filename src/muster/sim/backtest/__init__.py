"""Replay the history of a cluster in virtual time, under the same settings or others."""
