"""Experiment trackers: `mlflow`, `wandb` and `comet`, each with the package of that name installed."""
