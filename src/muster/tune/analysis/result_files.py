"""Read the files in the directory of a trial: results, checkpoints, errors. Local or remote.

Nothing here writes a file. Only `error` unpickles.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import pickle
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.base.untrusted import describe, error_text
from muster.errors import StoreError, TuneError
from muster.session.checkpoint import Checkpoint
from muster.session.publish import CHECKPOINT_NAME
from muster.stores.storage import Storage
from muster.trials import metrics
from muster.trials.metrics import TRAINING_ITERATION
from muster.trials.spend import COST_KEY
from muster.tune.analysis.tables import Row

logger = logging.getLogger(__name__)

Scored = tuple[Checkpoint, dict[str, Any]]
# Digits that are names: "1e234567" is a trial, not infinity.
_TEXT = frozenset({"trial_id", "date", "hostname", "node_ip", "checkpoint_dir_name", "experiment_tag"})
_INTEGER = re.compile(r"[-+]?\d+")
_FLOAT = re.compile(r"[-+]?((\d+\.?\d*|\.\d+)(e[-+]?\d+)?|inf|infinity|nan)", re.IGNORECASE)
_FAILURE = re.compile(r"^Failure # \d+ \(occurred at .*\)\n", re.MULTILINE)  # see failure_text


class TrialFolder:
    """The directory of one trial."""

    def __init__(self, path: str, filesystem: Any = None) -> None:  # noqa: ANN401 - untyped fsspec
        self.path = path
        self.filesystem = filesystem
        self._storage = Storage(path, filesystem)

    def exists(self) -> bool:
        return self._storage.exists()

    def path_of(self, name: str) -> str | None:
        """Return the path of a file of the trial; None when there is no such file."""
        return f"{self.path}/{name}" if self._storage.exists(name) else None

    def rows(self) -> list[Row]:
        """Return every logged result; FileNotFoundError if there is no log, ValueError if it is damaged."""
        text = self._text(EXPR_RESULT_FILE)
        if text is not None:
            return parse_json_lines(text)
        text = self._text(EXPR_PROGRESS_FILE)
        if text is None:
            raise FileNotFoundError(
                f"{self.path} has neither {EXPR_RESULT_FILE} nor {EXPR_PROGRESS_FILE}: the trial logged "
                "nothing, or its loggers were turned off"
            )
        params_text = self._text(EXPR_PARAM_FILE)
        params: dict[str, Any] = {} if params_text is None else json.loads(params_text)
        return parse_csv(text, params)

    def checkpoints(
        self, rows: Callable[[], Sequence[Mapping[str, Any]]], made_at: Mapping[int, int] | None = None
    ) -> list[Scored]:
        """Return those on disk, oldest first, with the result that each was reported with.

        Results of a class do not name them: `made_at` has the iterations of its checkpoints, by number.
        """
        names = [name for name in self._storage.listing() if name.startswith("checkpoint_")]
        found = rows() if names else []
        by_iteration = {row.get(TRAINING_ITERATION): dict(row) for row in found} if made_at else {}
        known: dict[Any, dict[str, Any]] = {
            CHECKPOINT_NAME.format(index=number): by_iteration[iteration]
            for number, iteration in (made_at or {}).items()
            if iteration in by_iteration
        }
        known |= {row[CHECKPOINT_DIR_NAME]: dict(row) for row in found if row.get(CHECKPOINT_DIR_NAME)}
        for name in names:
            if name not in known:
                logger.warning("%s: no result belongs to %s", self.path, name)
        return [
            (Checkpoint(f"{self.path}/{name}", filesystem=self.filesystem), known.get(name, {}))
            for name in names
        ]

    def error(self, pickled: bytes | None = None, text: str = "") -> BaseException | None:
        """Return the exception that ended the trial: the pickled one, else a TuneError with the reason."""
        content = pickled if pickled is not None else self._bytes(EXPR_ERROR_PICKLE_FILE)
        if content is not None:
            try:
                found = pickle.loads(content)
                return found if isinstance(found, BaseException) else TuneError(describe(found))
            except Exception as error:  # noqa: BLE001 - its class may be gone, or refuse to be built
                logger.warning("%s: the exception cannot be unpickled (%s)", self.path, error_text(error))
        text = text or _FAILURE.split(self._text(EXPR_ERROR_FILE) or "")[-1].strip()
        return TuneError(text) if text else None

    def _text(self, name: str) -> str | None:
        content = self._bytes(name)
        return None if content is None else content.decode(errors="replace")

    def _bytes(self, name: str) -> bytes | None:
        """Return None when there is no such file; StoreError when there is and it cannot be read."""
        try:
            return self._storage.read(name)
        except StoreError as error:
            if isinstance(error.__cause__, FileNotFoundError | NotADirectoryError):
                return None
            raise


def parse_json_lines(text: str) -> list[Row]:
    """Return one result per line, without a last line that was cut off by a crash."""
    lines = text.split("\n")
    torn = lines.pop()
    rows: list[Row] = [json.loads(line) for line in lines if line.strip()]
    if torn.strip():
        try:
            rows.append(json.loads(torn))
        except ValueError:
            logger.debug("the last line of a result log is incomplete and left out")
    return rows


def parse_csv(text: str, config: Mapping[str, Any]) -> list[Row]:
    """Return the rows of the CSV file, which has flat keys and no config: that is given."""
    rows = []
    whole = text[: text.rfind("\n") + 1]  # a crash may have cut off the last line, in the middle of a number
    for line in csv.DictReader(io.StringIO(whole)):
        row: Row = {key: _value(key, text) for key, text in line.items() if key is not None}
        rows.append({**row, "config": dict(config)} if config else row)
    return rows


def _value(key: str, text: str | None) -> Any:  # noqa: ANN401
    if text is None or text == "":
        return None
    if key in _TEXT:
        return text
    if text in ("True", "False"):
        return text == "True"
    if _INTEGER.fullmatch(text):
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text


def opened_place(path: str, filesystem: Any) -> tuple[str, Any]:  # noqa: ANN401
    """Return the path without scheme, and its fsspec file system; None for this machine."""
    if filesystem is not None:
        return path, filesystem
    if "://" not in path:
        return os.path.expanduser(path), None
    if path.startswith("file://"):
        return path[len("file://") :], None
    from fsspec.core import url_to_fs  # type: ignore[import-untyped]  # it has no types

    found, inner = url_to_fs(path)
    return str(inner), found


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
