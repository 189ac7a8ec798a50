"""Checks that a v1 provider keeps its promises: once, for `muster provider check` and for ProviderContract."""
