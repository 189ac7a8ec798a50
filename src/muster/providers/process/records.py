"""NodeDirectory keeps the records of the nodes of one cluster on this computer, one JSON file per node.

Several processes work on it at a time (a monitor, `muster down`, the next monitor after a kill). Changes are
made under a lock of the directory; files are replaced as a whole, so reading needs no lock. A record is
written before the node's process is made.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from muster.base.codec import decode, encode
from muster.host.atomic_write import atomic_write
from muster.host.processes import ProcessIdentity
from muster.providers.process.ray_command import NodePorts, NodeSize
from muster.providers.v1.tags import NODE_KIND_HEAD, TAG_RAY_NODE_KIND

logger = logging.getLogger(__name__)

NodeState = Literal["pending", "running", "terminated"]
_SHORT_ROOT = "/tmp"  # the paths of Ray's sockets may have 107 bytes; TMPDIR is often long


class NodeRecord(Struct, frozen=True, kw_only=True):
    """One node, from the request to the end."""

    cloud_id: str
    cluster_name: str
    node_type: str
    tags: Mapping[str, str]
    size: NodeSize
    temp_dir: str  # the node's own; removed with it
    ray_node_id: str = ""
    created_at: float
    state: NodeState = "pending"
    ports: NodePorts | None = None
    owner: ProcessIdentity | None = (
        None  # the process that starts or ends it; None or dead: the next provider that finds it
    )
    process: ProcessIdentity | None = None  # the leader of the node's session
    main_process: ProcessIdentity | None = None  # when this process ends, the node is of no use any more
    started_at: float | None = None
    ended_at: float | None = None  # terminated, and since then nothing of it runs any more
    reason: str = ""  # why it is terminated, when that was not requested

    @property
    def is_head(self) -> bool:
        return self.tags.get(TAG_RAY_NODE_KIND) == NODE_KIND_HEAD


Change = Callable[[NodeRecord], NodeRecord | None]


class NodeDirectory:
    """Reads and writes the files; it is cheap to make and holds nothing open."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def add(self, records: list[NodeRecord]) -> None:
        with self._locked():
            for record in records:
                self._write(record)

    def change(self, cloud_id: str, change: Change) -> NodeRecord | None:
        """Read, change and write a record under the lock; return the new record.

        None means that it does not exist, or that `change` returned None to leave it as it is.
        """
        with self._locked():
            record = self.find(cloud_id)
            changed = None if record is None else change(record)
            if changed is not None:
                self._write(changed)
            return changed

    def forget(self, cloud_id: str) -> None:
        """Delete a node's record and log."""
        with self._locked():
            self._file(cloud_id).unlink(missing_ok=True)
            self.log_of(cloud_id).unlink(missing_ok=True)

    def find(self, cloud_id: str) -> NodeRecord | None:
        return self._read(self._file(cloud_id))

    def records(self) -> list[NodeRecord]:
        """Return all records, oldest first; a file that cannot be read is logged and left out."""
        found = (self._read(file) for file in self.path.glob("*.json"))
        return sorted(
            (record for record in found if record is not None), key=lambda one: (one.created_at, one.cloud_id)
        )

    def temp_root(self) -> Path:
        """Return a short directory of the cluster's own, making it if necessary."""
        with self._locked():
            root = self._known_root()
            if root is None:
                root = Path(tempfile.mkdtemp(prefix="mr-", dir=_SHORT_ROOT))
                atomic_write(self._root_file, str(root).encode())
            root.mkdir(mode=0o700, exist_ok=True)  # a cleanup of /tmp may have removed it
            return root

    def remove_temp_root(self) -> Path | None:
        with self._locked():
            root = self._known_root()
            if root is not None:
                shutil.rmtree(root, ignore_errors=True)
                self._root_file.unlink(missing_ok=True)
            return root

    def output(self, cloud_id: str) -> bytes:
        """Return the whole output of the node's command so far."""
        try:
            return self.log_of(cloud_id).read_bytes()
        except FileNotFoundError:
            return b""

    def last_output(self, cloud_id: str, lines: int = 1) -> str:
        """Return the last lines of the output; "" when it is empty."""
        output = self.output(cloud_id).decode(errors="replace")
        return "\n".join([line.strip() for line in output.splitlines() if line.strip()][-lines:])

    def log_of(self, cloud_id: str) -> Path:
        """Return the log file of the node's `ray start`."""
        return self.path / f"{cloud_id}.log"

    @property
    def _root_file(self) -> Path:
        return self.path / "temp_dir"

    def _known_root(self) -> Path | None:
        try:
            return Path(self._root_file.read_text().strip())
        except FileNotFoundError:
            return None

    def _file(self, cloud_id: str) -> Path:
        return self.path / f"{cloud_id}.json"

    def _read(self, file: Path) -> NodeRecord | None:
        try:
            return decode(file.read_bytes(), NodeRecord)
        except FileNotFoundError:
            return None
        except (ValueError, msgspec.DecodeError) as error:
            logger.warning("%s cannot be read and is left out: %s", file, error)
            return None

    def _write(self, record: NodeRecord) -> None:
        atomic_write(self._file(record.cloud_id), encode(record))

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Admit one writer at a time, of all threads and processes; the lock ends with its process."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "wb") as stream:
            fcntl.flock(stream, fcntl.LOCK_EX)
            yield
