"""Integrate trackers (`mlflow`, `wandb`, `comet`) and `keras`; each needs the package it is named after."""
