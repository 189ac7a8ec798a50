"""Implements `muster page`: experiments and clusters in a browser, and reports to mail."""
