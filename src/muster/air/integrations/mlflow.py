"""Export what logs to MLflow at Ray's other import path."""

from __future__ import annotations

from muster.tune.logger.mlflow import MLflowLoggerCallback, setup_mlflow

__all__ = ["MLflowLoggerCallback", "setup_mlflow"]
