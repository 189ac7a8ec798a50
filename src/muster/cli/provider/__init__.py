"""Implement `muster provider`: checks a provider against its contract, and ends what a check has left."""
