"""Implement `muster tune`: lists, shows, exports and resumes experiments."""
