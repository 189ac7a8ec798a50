"""Tune hyperparameters with Ray Tune's names: change the import, keep the script.

Every name is loaded when it is first used, so that the import is fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.errors import TuneError as TuneError
    from muster.session.checkpoint import Checkpoint as Checkpoint
    from muster.session.report import get_checkpoint as get_checkpoint
    from muster.session.report import get_context as get_context
    from muster.session.report import get_preemption_info as get_preemption_info
    from muster.session.report import report as report
    from muster.session.report import should_checkpoint as should_checkpoint
    from muster.session.session import TuneContext as TuneContext
    from muster.slurm.config import SlurmConfig as SlurmConfig
    from muster.trials.placement_group import PlacementGroupFactory as PlacementGroupFactory
    from muster.tune.analysis import ExperimentAnalysis as ExperimentAnalysis
    from muster.tune.ask_tell import AskedTrial as AskedTrial
    from muster.tune.callback import Callback as Callback
    from muster.tune.commands.command import command as command
    from muster.tune.config import CheckpointConfig as CheckpointConfig
    from muster.tune.config import FailureConfig as FailureConfig
    from muster.tune.config import RunConfig as RunConfig
    from muster.tune.config import SyncConfig as SyncConfig
    from muster.tune.experiment import Experiment as Experiment
    from muster.tune.progress_reporter import CLIReporter as CLIReporter
    from muster.tune.progress_reporter import JupyterNotebookReporter as JupyterNotebookReporter
    from muster.tune.progress_reporter import ProgressReporter as ProgressReporter
    from muster.tune.registry import register_env as register_env
    from muster.tune.registry import register_trainable as register_trainable
    from muster.tune.result import Result as Result
    from muster.tune.result_grid import ResultGrid as ResultGrid
    from muster.tune.schedulers import create_scheduler as create_scheduler
    from muster.tune.search import create_searcher as create_searcher
    from muster.tune.search.space import choice as choice
    from muster.tune.search.space import grid_search as grid_search
    from muster.tune.search.space import lograndint as lograndint
    from muster.tune.search.space import loguniform as loguniform
    from muster.tune.search.space import qlograndint as qlograndint
    from muster.tune.search.space import qloguniform as qloguniform
    from muster.tune.search.space import qrandint as qrandint
    from muster.tune.search.space import qrandn as qrandn
    from muster.tune.search.space import quniform as quniform
    from muster.tune.search.space import randint as randint
    from muster.tune.search.space import randn as randn
    from muster.tune.search.space import sample_from as sample_from
    from muster.tune.search.space import uniform as uniform
    from muster.tune.stopper import Stopper as Stopper
    from muster.tune.trainable.trainable import Trainable as Trainable
    from muster.tune.trainable.util import with_parameters as with_parameters
    from muster.tune.trainable.util import with_resources as with_resources
    from muster.tune.trainable.workers import with_workers as with_workers
    from muster.tune.tune import run as run
    from muster.tune.tune import run_experiments as run_experiments
    from muster.tune.tune_config import ResumeConfig as ResumeConfig
    from muster.tune.tune_config import TuneConfig as TuneConfig
    from muster.tune.tuner import Tuner as Tuner
else:
    from muster.tune.older_modules import with_older_names  # it also finds older modules

    _load, __dir__, __all__ = lazy_names(
        __name__,
        {
            "muster.errors": ["TuneError"],
            "muster.session.checkpoint": ["Checkpoint"],
            "muster.session.session": ["TuneContext"],
            "muster.session.report": [
                *("get_checkpoint", "get_context", "get_preemption_info", "report", "should_checkpoint"),
            ],
            "muster.slurm.config": ["SlurmConfig"],
            "muster.trials.placement_group": ["PlacementGroupFactory"],
            ".analysis": ["ExperimentAnalysis"],
            ".ask_tell": ["AskedTrial"],
            ".callback": ["Callback"],
            ".commands.command": ["command"],
            ".config": ["CheckpointConfig", "FailureConfig", "RunConfig", "SyncConfig"],
            ".experiment": ["Experiment"],
            ".progress_reporter": ["CLIReporter", "JupyterNotebookReporter", "ProgressReporter"],
            ".registry": ["register_env", "register_trainable"],
            ".result": ["Result"],
            ".result_grid": ["ResultGrid"],
            ".schedulers": ["create_scheduler"],
            ".search": ["create_searcher"],
            ".search.space": [
                *("choice", "grid_search", "lograndint", "loguniform", "qlograndint", "qloguniform"),
                *("qrandint", "qrandn", "quniform", "randint", "randn", "sample_from", "uniform"),
            ],
            ".stopper": ["Stopper"],
            ".trainable.trainable": ["Trainable"],
            ".trainable.util": ["with_parameters", "with_resources"],
            ".trainable.workers": ["with_workers"],
            ".tune": ["run", "run_experiments"],
            ".tune_config": ["ResumeConfig", "TuneConfig"],
            ".tuner": ["Tuner"],
        },
    )

    __getattr__ = with_older_names(_load)
