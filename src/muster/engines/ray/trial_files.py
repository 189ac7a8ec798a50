"""TrialFiles: logs and artifacts of a trial on a node that has no directory in common with the driver.

Called by StorageCarrier. What fails here is told and never ends a trial.
"""

from __future__ import annotations

import logging
import os
import re

from muster.engines.ray.reach import Reach
from muster.engines.worker.protocol import Order
from muster.errors import MusterError
from muster.stores.storage import local_sizes

_log = logging.getLogger(__name__)
CHECKPOINT = re.compile(r"checkpoint_(\d{6,})")


class TrialFiles:
    """Of one attempt; `name` is that of the trial's directory in the storage."""

    def __init__(self, reach: Reach, name: str, order: Order) -> None:
        self._reach, self._storage, self._name = reach, reach.storage(), name
        self._folder = order.trial_dir
        self._logs = {file for file in order.log_to_file if file}
        self._sent: dict[str, tuple[int, int]] = {}  # size and time of change

    def fetch_logs(self) -> None:
        """A trial that ran elsewhere before goes on in its log files."""
        for file in self._logs:
            place, name = os.path.join(self._folder, file), f"{self._name}/{file}"
            try:
                if not os.path.exists(place) and self._storage.size(name) is not None:
                    earlier = self._storage.read(name)
                    with open(place, "xb") as stream:
                        stream.write(earlier)
            except (MusterError, OSError) as error:
                _log.warning("the log of an earlier attempt is not continued: %s", error)

    def send(self) -> None:
        """Logs, and artifacts where they are wanted, as far as they have changed."""
        for file in local_sizes(self._folder):
            place = os.path.join(self._folder, file)
            try:
                seen = os.stat(place)
                print_ = (seen.st_size, seen.st_mtime_ns)
                if self._is_sent(file) and self._sent.get(file) != print_:
                    self._storage.upload_file(place, f"{self._name}/{file}")
                    self._sent[file] = print_
            except (MusterError, OSError) as error:
                _log.warning("a file of trial %s is not copied: %s", self._name, error)

    def _is_sent(self, file: str) -> bool:
        first = file.partition("/")[0]
        is_checkpoint = CHECKPOINT.fullmatch(first) or first.endswith((".partial", ".deleted"))
        if is_checkpoint or file in self._reach.reserved:
            return False
        return self._reach.with_artifacts or file in self._logs
