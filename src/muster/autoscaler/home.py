"""Name the files of one cluster on its head. Paths only.

The launcher, the monitor and the CLI find each other's files here. Default root: `~/.muster/clusters`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

DEFAULT_ROOT = Path("~/.muster/clusters")


@dataclass(frozen=True)
class ClusterHome:
    """The directory of one cluster."""

    path: Path

    @classmethod
    def of(cls, cluster_name: str, root: Path | None = None) -> ClusterHome:
        """Return the home of a cluster; `root` is `$MUSTER_HOME/clusters` where that variable is set."""
        return cls((root or DEFAULT_ROOT).expanduser() / cluster_name)

    @property
    def ledger(self) -> Path:
        """Return the instance store's file; its lock keeps a second monitor out."""
        return self.path / "ledger.db"

    @property
    def backups(self) -> Path:
        """Return the directory of copies of a ledger that is on another machine, for a new head."""
        return self.path / "backups"

    @property
    def pulled(self) -> Path:
        """Return an empty file whose time is that of the last attempt to fetch such a copy."""
        return self.path / "ledger_pulled"

    @property
    def status(self) -> Path:
        """Return the file of the PublishedStatus, which the monitor replaces after every change."""
        return self.path / "status.json"

    @property
    def cluster(self) -> Path:
        """Return the file of the ClusterRecord, which `muster up` writes: how to reach the cluster."""
        return self.path / "cluster.json"

    @property
    def token(self) -> Path:
        """Return the file of Ray's token, readable by its owner only."""
        return self.path / "auth_token"

    @property
    def metrics_token(self) -> Path:
        """Return the file of the token that the metrics ask for, where a user has written one."""
        return self.path / "metrics_token"

    @property
    def monitor_log(self) -> Path:
        return self.path / "monitor.log"

    @property
    def history(self) -> Path:
        """Return the directory of the compact history: the page shows it, `muster backtest` replays it."""
        return self.path / "history"

    @property
    def shadow(self) -> Path:
        """Return the file of the ShadowBook of `muster monitor --shadow`."""
        return self.path / "shadow.json"

    @property
    def nodes(self) -> Path:
        """Return the directory of the process provider: one file per node."""
        return self.path / "nodes"
