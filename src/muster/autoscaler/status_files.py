"""`cluster.json` and `status.json` on disk: plain JSON, replaced as a whole, readable by their owner only.

The launcher and the monitor write, the people's commands read. A file that makes no sense is a StoreError.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.published import ClusterRecord, PublishedStatus
from muster.base import codec
from muster.errors import StoreError

T = TypeVar("T")


def write_record(home: ClusterHome, record: ClusterRecord) -> None:
    """How to reach the cluster."""
    _replace(home.cluster, codec.encode_plain(record))


def write_status(home: ClusterHome, status: PublishedStatus) -> None:
    """What the monitor saw and decided at its newest look."""
    _replace(home.status, codec.encode_plain(status))


def read_record(home: ClusterHome) -> ClusterRecord | None:
    """None when `muster up` never got so far, or `muster down` is done."""
    return _read(home.cluster, ClusterRecord)


def read_status(home: ClusterHome) -> PublishedStatus | None:
    """None before the first look."""
    return _read(home.status, PublishedStatus)


def _replace(path: Path, data: bytes) -> None:
    """A reader sees the old file or the new one, never half of one."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as stream:
            stream.write(data)
        os.replace(fresh, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            fresh.unlink()
        raise StoreError(f"{path}: {error.strerror}; this user must be able to write it") from error


def _read(path: Path, kind: type[T]) -> T | None:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return codec.convert(msgspec.json.decode(data), kind)
    except ValueError as error:  # msgspec's errors are of this kind
        raise StoreError(f"{path}: {error}; was it written by another version of muster?") from error
