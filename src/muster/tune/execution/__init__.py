"""How an experiment is prepared, run, saved and restored."""
