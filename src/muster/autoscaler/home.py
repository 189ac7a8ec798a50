"""ClusterHome: where one cluster keeps its files on the head, and what is in each. Paths only.

The launcher, the monitor and the CLI find each other through it. Default root: `~/.muster/clusters`.
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
        """`root` is `$MUSTER_HOME/clusters` where that variable is set; the caller reads it."""
        return cls((root or DEFAULT_ROOT).expanduser() / cluster_name)

    @property
    def ledger(self) -> Path:
        """The instance store; its lock keeps a second monitor out."""
        return self.path / "ledger.db"

    @property
    def status(self) -> Path:
        """PublishedStatus as JSON, replaced as a whole by the monitor when something changed."""
        return self.path / "status.json"

    @property
    def cluster(self) -> Path:
        """ClusterRecord as JSON: how to reach the cluster; written by `muster up`."""
        return self.path / "cluster.json"

    @property
    def token(self) -> Path:
        """Ray's token, readable by its owner only."""
        return self.path / "auth_token"

    @property
    def monitor_log(self) -> Path:
        return self.path / "monitor.log"

    @property
    def timeline(self) -> Path:
        """One JSON line per look that changed something: demand, nodes, spend (the demo draws it)."""
        return self.path / "timeline.jsonl"

    @property
    def nodes(self) -> Path:
        """The process provider's directory: one file per node."""
        return self.path / "nodes"
