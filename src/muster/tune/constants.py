"""List the environment variables of the tuner, at Ray's import path: what each does, or why it does nothing.

`launch` warns of those without an effect; tools/variables.py writes docs/variables.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeVar

RAY_TUNE_CALLBACKS_ENV_VAR = "RAY_TUNE_CALLBACKS"
NO_EFFECT = "No effect"  # begins the description of a variable that is refused with a warning
REMOVED = "Removed"  # begins the description of a variable that is refused with an error


# Name, default and effect; a line that is indented belongs to the row above.
_ROWS = """
TUNE_DISABLE_AUTO_CALLBACK_LOGGERS | 0 | 1: no automatic CSV, JSON and TensorBoard files.
TUNE_DISABLE_AUTO_INIT | 0 | No effect: muster starts no Ray cluster; use RunConfig(engine=...).
TUNE_DISABLE_DATED_SUBDIR | 0 | 1: generated experiment names have no date.
TUNE_DISABLE_RESOURCE_CHECKS | | Always on: muster does not check tasks that a trial starts on Ray.
TUNE_DISABLE_SIGINT_HANDLER | 0 | 1: Ctrl-C raises KeyboardInterrupt at once, instead of a gentle stop.
TUNE_DISABLE_STRICT_METRIC_CHECKING | 0 | 1: results may lack the metric.
TUNE_FORCE_TRIAL_CLEANUP_S | 600 | Seconds that a stopped trial has to end before muster kills it; 0: never.
TUNE_FUNCTION_THREAD_TIMEOUT_S | 2 | No effect: a trial is a process; use TUNE_FORCE_TRIAL_CLEANUP_S.
TUNE_GLOBAL_CHECKPOINT_S | auto | Seconds between snapshots of the plug-ins; results are on disk at once.
TUNE_MAX_LEN_IDENTIFIER | 130 | Characters of a trial directory name before its date.
TUNE_MAX_PENDING_TRIALS_PG | auto | Trials that muster requests from the searcher before they can start.
TUNE_ONLY_STORE_CHECKPOINT_SCORE_ATTRIBUTE | 0 | 1: of the metrics of a checkpoint, only its score is kept.
TUNE_ORIG_WORKING_DIR | | Set for trials: the working directory of the driver.
TUNE_PLACEMENT_GROUP_PREFIX | | No effect: nor has it in Ray 2.60; unset it.
TUNE_PLACEMENT_GROUP_RECON_INTERVAL | | No effect: nor has it in Ray 2.60; unset it.
TUNE_PRINT_ALL_TRIAL_ERRORS | 1 | 0: the output names failed trials, but not their errors.
TUNE_RESTORE_RETRY_NUM | 0 | Failures while a trial restores its checkpoint that are not counted.
TUNE_RESULT_BUFFER_LENGTH | 1 | Results that a trial may send together; decisions on them come late. 1: off.
TUNE_RESULT_BUFFER_MAX_TIME_S | 100 | Most seconds that results wait to be sent together.
TUNE_RESULT_BUFFER_MIN_TIME_S | 0 | Least seconds that they wait; else a second per ten running trials.
TUNE_RESULT_DELIM | / | Joins nested keys in ExperimentAnalysis.results_df.
TUNE_RESULT_DIR | | Removed: pass RunConfig(storage_path=...) instead.
TUNE_STATE_REFRESH_PERIOD | 10 | No effect: muster reads the cluster every 2 s, in the background; unset it.
TUNE_WARN_EXCESSIVE_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S | 5 | No effect: checkpoints force no upload; use
 SyncConfig(sync_period=...).
TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S | 60 | Warn when no trial has run for so many seconds.
TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER | 60 | The same where an autoscaler adds nodes.
TUNE_WARN_SLOW_EXPERIMENT_CHECKPOINT_SYNC_THRESHOLD_S | 30 | No effect: uploads delay no trial; use
 SyncConfig(sync_timeout=...).
TUNE_WARN_THRESHOLD_S | 0.5 | Warn when a call of a plug-in takes longer (seconds).
RAY_ADDRESS | | With RunConfig(engine="auto"): trials run on the Ray cluster at this address.
RAY_AIR_FULL_TRACEBACKS | 0 | 1: failures show the whole traceback, not its first and last lines.
RAY_AIR_LOCAL_CACHE_DIR | | Removed: pass RunConfig(storage_path=...) instead.
RAY_AIR_NEW_OUTPUT | 1 | 0: print the output of older Ray versions.
RAY_AUTH_MODE, RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH | | How to authenticate with a Ray cluster, as for Ray.
RAY_CHDIR_TO_TRIAL_DIR | 1 | 0: trials keep the working directory of the driver.
RAY_STORAGE | | Deprecated default of RunConfig(storage_path=...).
RAY_TMPDIR | /tmp | Where muster looks for the Ray cluster that runs on this machine.
RAY_TRAIN_COUNT_PREEMPTION_AS_FAILURE | 0 | 1: a trial whose node was preempted has failed.
RAY_TRAIN_ENABLE_V2_MIGRATION_WARNINGS | 1 | Always off: muster has no such warnings.
RAY_TUNE_CALLBACKS | | Import paths of more callbacks, comma-separated; made without arguments.
RAY_USE_TLS, RAY_TLS_SERVER_CERT, RAY_TLS_SERVER_KEY, RAY_TLS_CA_CERT | | Encryption on Ray, as for Ray.
TRAIN_COPY_DIRECTORY_CHECKPOINTS_INSTEAD_OF_MOVING | 0 | Always on: muster copies reported checkpoints.
RAY_TRAIN_CALLBACKS | | Callbacks of Ray Train; muster adds the one that keeps workers in the trial's group.
MUSTER_REPORT_TO | | Set for what a trial starts: the socket that takes its results.
MUSTER_TRIAL_ID, MUSTER_TRIAL_NAME, MUSTER_TRIAL_DIR, MUSTER_EXPERIMENT | | For commands: the trial.
MUSTER_CONFIG | | Set for commands: a JSON file with the configuration.
MUSTER_CHECKPOINT_DIR, MUSTER_RESUME_FROM | | For commands: where to save (DIR), what to resume from (FROM).
MUSTER_CHAIN | | Set by `muster tune submit`: a file with the experiments of its script.
MUSTER_AS_RAY | 0 | 1: `import ray` imports muster after `import muster`; force: also if Ray is installed.
MUSTER_AS_RAY_VERSION | 2.58.0 | The version that `ray.__version__` shows under muster.as_ray.
MUSTER_HOME | ~/.muster | Where the files of clusters are.
MUSTER_LOG_FORMAT | text | json: the monitor writes its log as one JSON object per line.
MUSTER_NOTICES_ADDRESS | | Where a node reads interruption notices, instead of the cloud's address.
MUSTER_OLDER_API | 1 | 0: names that Ray has removed are errors, not warnings.
MUSTER_PAGE | 0 | 1: every run serves its dashboard, as with RunConfig(page=True).
"""
VARIABLES = {
    name: (default.strip(), effect.strip())
    for names, default, effect in (row.split("|") for row in _ROWS.replace("\n ", " ").split("\n") if row)
    for name in names.strip().split(", ")
}
TUNE_ENV_VARS = {name for name in VARIABLES if not name.startswith("MUSTER_")}


Number = TypeVar("Number", int, float)


def number_in(
    environment: Mapping[str, str], kind: type[Number], name: str, default: Number | None = None
) -> Number:
    """Return the number in an environment variable, else the default: that of the table, unless given."""
    given = environment.get(name) or environment.get(name.replace("INSUFFICENT", "INSUFFICIENT")) or "auto"
    if given == "auto":
        return kind(VARIABLES[name][0]) if default is None else default
    try:
        number = kind(given)
    except ValueError:
        number = kind(-1)
    if 0 <= number < math.inf:
        return number
    wanted = "a whole number" if kind is int else "a number of seconds"
    raise ValueError(
        f"the environment variable {name}={given!r}: must be {wanted}, 0 or more; correct it or unset it"
    )


def idle_warning_in(environment: Mapping[str, str]) -> tuple[float, float]:
    """Return after how long to warn that nothing runs: on a fixed size, and on one that may grow."""
    name = "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S"  # Ray's spelling
    return number_in(environment, float, name), number_in(environment, float, f"{name}_AUTOSCALER")
