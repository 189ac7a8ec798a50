"""Defines the names of result keys and of the files in the directory of a trial, as in Ray Tune."""

from __future__ import annotations

from muster.trials import metrics
from muster.trials.metrics import TRAINING_ITERATION
from muster.trials.spend import COST_KEY

DEFAULT_METRIC = metrics.DEFAULT_METRIC
DEBUG_METRICS = metrics.DEBUG_METRICS

TRIAL_ID = "trial_id"
EXPERIMENT_TAG = "experiment_tag"
CONFIG = "config"
DONE = "done"
DATE = "date"
TIMESTAMP = "timestamp"
PID = "pid"
HOSTNAME = "hostname"
NODE_IP = "node_ip"
TIME_THIS_ITER_S = "time_this_iter_s"
TIME_TOTAL_S = "time_total_s"
TIME_SINCE_RESTORE = "time_since_restore"
ITERATIONS_SINCE_RESTORE = "iterations_since_restore"
TIMESTEPS_SINCE_RESTORE = "timesteps_since_restore"
TIMESTEPS_THIS_ITER = "timesteps_this_iter"
TIMESTEPS_TOTAL = "timesteps_total"
EPISODES_THIS_ITER = "episodes_this_iter"
EPISODES_TOTAL = "episodes_total"
CHECKPOINT_DIR_NAME = "checkpoint_dir_name"
COST_USD = COST_KEY
SHOULD_CHECKPOINT = "should_checkpoint"
RESULT_DUPLICATE = "__duplicate__"
TRIAL_INFO = "__trial_info__"
STDOUT_FILE = "__stdout_file__"
STDERR_FILE = "__stderr_file__"
MEAN_ACCURACY = "mean_accuracy"
MEAN_LOSS = "mean_loss"
EPISODE_REWARD_MEAN = "episode_reward_mean"

EXPR_RESULT_FILE = "result.json"
EXPR_PROGRESS_FILE = "progress.csv"
EXPR_PARAM_FILE = "params.json"
EXPR_PARAM_PICKLE_FILE = "params.pkl"
EXPR_ERROR_FILE = "error.txt"
EXPR_ERROR_PICKLE_FILE = "error.pkl"

CONFIG_PREFIX = "config"
DEFAULT_EXPERIMENT_NAME = "default"
DEFAULT_EXPERIMENT_INFO_KEYS = ("trainable_name", EXPERIMENT_TAG, TRIAL_ID)
DEFAULT_RESULT_KEYS = (TRAINING_ITERATION, TIME_TOTAL_S, MEAN_ACCURACY, MEAN_LOSS)

# Filled in automatically, hence not what a user looks for in a result.
AUTO_RESULT_KEYS = (
    TIMESTAMP,
    CHECKPOINT_DIR_NAME,
    DONE,
    TIMESTEPS_TOTAL,
    EPISODES_TOTAL,
    TRAINING_ITERATION,
    TRIAL_ID,
    DATE,
    TIME_THIS_ITER_S,
    TIME_TOTAL_S,
    PID,
    HOSTNAME,
    NODE_IP,
    CONFIG,
    TIME_SINCE_RESTORE,
    ITERATIONS_SINCE_RESTORE,
    TIMESTEPS_SINCE_RESTORE,
    EXPERIMENT_TAG,
    COST_USD,
)

__all__ = [name for name in globals() if name.isupper()]
