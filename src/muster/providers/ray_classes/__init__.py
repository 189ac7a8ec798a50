"""Providers of the user's Ray, for clouds that muster has no provider for."""
