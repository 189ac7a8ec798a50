"""Implement the store ports of the domains with files; the domains never import this package."""
