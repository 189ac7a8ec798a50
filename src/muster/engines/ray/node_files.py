"""Scratch: a directory of one actor on its node, for the files of its trials. Goes when the actor ends; what
an actor that was killed left behind goes when the next one starts.

No path of the driver's is used: here it may hold another experiment, or an older state of this one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import tempfile

from muster.engines.ray.reach import Reach
from muster.engines.worker.protocol import Order
from muster.errors import MusterError
from muster.stores.storage import local_sizes

_PREFIX = "muster-node-"
_LOCK = ".in_use"


class Scratch:
    """Made when it is first asked for. TMPDIR says on which disk."""

    def __init__(self) -> None:
        self._path: str | None = None
        self._lock: int | None = None

    def path(self, *names: str) -> str:
        if self._path is None:
            sweep()
            self._path = tempfile.mkdtemp(prefix=_PREFIX)
            self._lock = _locked(self._path)
        return os.path.join(self._path, *names)

    def remove(self, *names: str) -> None:
        """This directory in it, or all of it."""
        if self._path is None:
            return
        shutil.rmtree(os.path.join(self._path, *names), ignore_errors=True)
        if not names:
            self._path = None
            if self._lock is not None:
                os.close(self._lock)


def sweep() -> None:
    """Remove directories whose process is gone: nobody holds their lock."""
    for entry in os.scandir(tempfile.gettempdir()):
        if not entry.name.startswith(_PREFIX):
            continue
        with contextlib.suppress(OSError):  # in use, or not ours
            lock = os.open(os.path.join(entry.path, _LOCK), os.O_RDWR | os.O_CLOEXEC)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path, ignore_errors=True)
            finally:
                os.close(lock)


def _locked(folder: str) -> int:
    """Locked before it gets its name: nobody ever finds it unlocked while we live."""
    early = os.path.join(folder, f"{_LOCK}.new")
    lock = os.open(early, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    os.rename(early, os.path.join(folder, _LOCK))
    return lock


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
