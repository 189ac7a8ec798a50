"""Answers what an experiment will cost before it is run."""
