"""Implements `muster tune run`."""
