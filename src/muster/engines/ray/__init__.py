"""Run trials as actors of a Ray cluster."""
