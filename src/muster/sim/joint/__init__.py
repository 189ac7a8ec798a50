"""Run tuner and autoscaler in one virtual world: the real controllers of both, one clock, one cloud."""
