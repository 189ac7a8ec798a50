"""Run Ray's own code and ours on the same inputs: `python -m bench NAME`."""
