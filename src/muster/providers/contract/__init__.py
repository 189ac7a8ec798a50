"""Check that a v1 provider keeps its promises; `muster provider check` and ProviderContract run it."""
