"""`muster tune`: look at experiments, resume them, export them."""
