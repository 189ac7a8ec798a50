"""Export what logs to Weights & Biases at Ray's other import path."""

from __future__ import annotations

from muster.tune.logger.wandb import WandbLoggerCallback, setup_wandb

__all__ = ["WandbLoggerCallback", "setup_wandb"]
