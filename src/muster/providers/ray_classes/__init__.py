"""Providers of the user's own Ray, for clouds that muster has no provider of its own for."""
