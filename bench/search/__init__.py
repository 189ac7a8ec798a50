"""Compares TPESearch with Optuna's default sampler and with random search, problem by problem."""
