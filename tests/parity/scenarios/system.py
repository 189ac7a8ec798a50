"""Choose the package that `tune` is: the one place where the two systems differ."""

from __future__ import annotations

import importlib
import os
from pathlib import Path

NAME = os.environ["PARITY_SYSTEM"]  # "ray" or "muster"
ROOT = Path(os.environ["PARITY_ROOT"])

tune = importlib.import_module(f"{NAME}.tune")


def part(path: str):
    """A sub-module of tune: `part("search.optuna")`."""
    return importlib.import_module(f"{NAME}.tune.{path}")


def run_config(name: str, **more):
    return tune.RunConfig(name=name, storage_path=str(ROOT), verbose=0, **more)


def fit(name: str, trainable, space=None, *, tune_config=None, **run_options):
    """One experiment; a dict stands for its TuneConfig."""
    return tune.Tuner(
        trainable,
        param_space=space or {},
        tune_config=tune.TuneConfig(**(tune_config or {})),
        run_config=run_config(name, **run_options),
    ).fit()
