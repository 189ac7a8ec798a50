"""Tunes hyperparameters with Ray Tune's names: change the import, keep the script.

Every name is loaded when it is first used, so that importing this costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.errors import TuneError
    from muster.session.checkpoint import Checkpoint
    from muster.session.context import TuneContext
    from muster.session.report import get_checkpoint, get_context, report
    from muster.trials.placement_group import PlacementGroupFactory
    from muster.tune.analysis import ExperimentAnalysis
    from muster.tune.callback import Callback
    from muster.tune.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig
    from muster.tune.experiment import Experiment
    from muster.tune.progress_reporter import CLIReporter, JupyterNotebookReporter, ProgressReporter
    from muster.tune.registry import register_env, register_trainable
    from muster.tune.result import Result
    from muster.tune.result_grid import ResultGrid
    from muster.tune.schedulers import create_scheduler
    from muster.tune.search import create_searcher
    from muster.tune.search.space import (
        choice,
        grid_search,
        lograndint,
        loguniform,
        qlograndint,
        qloguniform,
        qrandint,
        qrandn,
        quniform,
        randint,
        randn,
        sample_from,
        uniform,
    )
    from muster.tune.stopper import Stopper
    from muster.tune.trainable.trainable import Trainable
    from muster.tune.trainable.util import with_parameters, with_resources
    from muster.tune.tune import run, run_experiments
    from muster.tune.tune_config import ResumeConfig, TuneConfig
    from muster.tune.tuner import Tuner

__all__ = [
    "CLIReporter",
    "Callback",
    "Checkpoint",
    "CheckpointConfig",
    "Experiment",
    "ExperimentAnalysis",
    "FailureConfig",
    "JupyterNotebookReporter",
    "PlacementGroupFactory",
    "ProgressReporter",
    "Result",
    "ResultGrid",
    "ResumeConfig",
    "RunConfig",
    "Stopper",
    "SyncConfig",
    "Trainable",
    "TuneConfig",
    "TuneContext",
    "TuneError",
    "Tuner",
    "choice",
    "create_scheduler",
    "create_searcher",
    "get_checkpoint",
    "get_context",
    "grid_search",
    "lograndint",
    "loguniform",
    "qlograndint",
    "qloguniform",
    "qrandint",
    "qrandn",
    "quniform",
    "randint",
    "randn",
    "register_env",
    "register_trainable",
    "report",
    "run",
    "run_experiments",
    "sample_from",
    "uniform",
    "with_parameters",
    "with_resources",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CLIReporter": ".progress_reporter",
        "Callback": ".callback",
        "Checkpoint": "muster.session.checkpoint",
        "CheckpointConfig": ".config",
        "Experiment": ".experiment",
        "ExperimentAnalysis": ".analysis",
        "FailureConfig": ".config",
        "JupyterNotebookReporter": ".progress_reporter",
        "PlacementGroupFactory": "muster.trials.placement_group",
        "ProgressReporter": ".progress_reporter",
        "Result": ".result",
        "ResultGrid": ".result_grid",
        "ResumeConfig": ".tune_config",
        "RunConfig": ".config",
        "Stopper": ".stopper",
        "SyncConfig": ".config",
        "Trainable": ".trainable.trainable",
        "TuneConfig": ".tune_config",
        "TuneContext": "muster.session.context",
        "TuneError": "muster.errors",
        "Tuner": ".tuner",
        "choice": ".search.space",
        "create_scheduler": ".schedulers",
        "create_searcher": ".search",
        "get_checkpoint": "muster.session.report",
        "get_context": "muster.session.report",
        "grid_search": ".search.space",
        "lograndint": ".search.space",
        "loguniform": ".search.space",
        "qlograndint": ".search.space",
        "qloguniform": ".search.space",
        "qrandint": ".search.space",
        "qrandn": ".search.space",
        "quniform": ".search.space",
        "randint": ".search.space",
        "randn": ".search.space",
        "register_env": ".registry",
        "register_trainable": ".registry",
        "report": "muster.session.report",
        "run": ".tune",
        "run_experiments": ".tune",
        "sample_from": ".search.space",
        "uniform": ".search.space",
        "with_parameters": ".trainable.util",
        "with_resources": ".trainable.util",
    },
)
