"""Answer what an experiment will cost before it is run."""
