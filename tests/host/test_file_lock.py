"""A file system without locks is refused with what to do about it."""

from __future__ import annotations

import errno
import os

import pytest

from muster.base.clock import ManualClock
from muster.errors import StoreError
from muster.host import file_lock


def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch):
    def flock(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(file_lock.fcntl, "flock", flock)
    with pytest.raises(StoreError) as caught:
        file_lock.FileLock.acquire(tmp_path / "store", clock=ManualClock(), wait_s=0.0)
    assert caught.value.fix
