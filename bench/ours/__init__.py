"""Run muster on the neutral facts of `bench.workloads` and `bench.fleet`."""
