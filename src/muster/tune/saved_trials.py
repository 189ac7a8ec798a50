"""The trials of an experiment, read from the store in its directory; the store may be in use, or remote."""

from __future__ import annotations

import os
import tempfile
from typing import Any

from muster.errors import StoreError
from muster.stores.experiment.reader import STORE_NAME, open_trials
from muster.stores.experiment.summary import TrialSummary
from muster.stores.storage import Storage


def experiment_directory(path: str) -> str:
    """The directory, given it or a state file in it."""
    place, _, name = path.rstrip("/").rpartition("/")
    is_file = name == STORE_NAME or (name.startswith("experiment_state-") and name.endswith(".json"))
    return (place or ".") if is_file else path.rstrip("/") or "/"


def saved_trials(directory: str, filesystem: Any = None) -> tuple[TrialSummary, ...]:  # noqa: ANN401
    """In the order of their creation; ValueError when there is no store."""
    if filesystem is None:
        if not os.path.isfile(os.path.join(directory, STORE_NAME)):
            raise _no_store(directory)
        with open_trials(directory) as reader:
            return reader.trials()
    storage = Storage(directory, filesystem)
    try:
        content = storage.read(STORE_NAME)
    except StoreError as error:
        raise _no_store(directory) from error
    with tempfile.TemporaryDirectory() as copy:
        with open(os.path.join(copy, STORE_NAME), "wb") as stream:
            stream.write(content)
        with open_trials(copy, root=directory) as reader:
            return reader.trials()


def _no_store(directory: str) -> ValueError:
    return ValueError(
        f"{directory} is no experiment: it has no {STORE_NAME}. Give the directory that fit() or run() wrote "
        "(<storage_path>/<name>), not that of a trial"
    )
