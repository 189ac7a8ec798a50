"""List the clusters that have files on this computer, for the commands of the CLI."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from muster.autoscaler.home import DEFAULT_ROOT, ClusterHome
from muster.autoscaler.status_files import ClusterRecord, PublishedStatus, read_record, read_status
from muster.base.text import did_you_mean, short_duration
from muster.config.load import NAME_RULE, any_size, is_cluster_name
from muster.errors import ClusterError, ConfigError
from muster.host.processes import is_alive
from muster.providers.kind import load_config
from muster.providers.process.head import running_head

QUIET_S = 10.0  # the monitor publishes at least every 5 s


@dataclass(frozen=True)
class KnownCluster:
    """A directory with a cluster's files; `record` is set while the cluster is up."""

    home: ClusterHome
    record: ClusterRecord | None

    @property
    def name(self) -> str:
        return self.home.path.name

    def node_types(self) -> tuple[str, ...]:
        """Return the node types of its file; () when the cluster is down or the file cannot be used."""
        try:
            if self.record is None:
                return ()
            return tuple(load_config(Path(self.record.config), sizes=any_size).available_node_types)
        except ConfigError:
            return ()

    def status(self) -> PublishedStatus | None:
        return read_status(self.home)

    def problem(self, status: PublishedStatus, now: float) -> str:
        """Return why the status may be out of date; "" when the status is current."""
        log = f"see {self.home.monitor_log}"
        gone = "" if self.record is None else self._gone(self.record, log)
        silent_s = now - status.at
        if gone or silent_s <= max(QUIET_S, 3 * status.interval_s + 5.0):
            return gone
        who, silent = f"the monitor (pid {status.monitor_pid})", short_duration(silent_s)
        return f"{who} has not updated the status for {silent}: check that it still runs; {log}"

    def _gone(self, record: ClusterRecord, log: str) -> str:
        """Name the processes of `muster up` that are gone."""
        command = "monitor" if record.provider and not self.home.nodes.is_dir() else "up"
        again = f"`muster {command} {record.config}` starts"
        if not is_alive(record.monitor):
            who = "the monitor" if record.monitor is None else f"the monitor (pid {record.monitor.pid})"
            return f"{who} is gone, so nothing scales: {again} a new one; {log}"
        if self.home.nodes.is_dir() and running_head(self.home.nodes) is None:
            return f"the head is gone, and with it everything that ran: {again} a new one; {log}"
        return ""


def clusters_root(environment: Mapping[str, str]) -> Path:
    """Return `$MUSTER_HOME/clusters`, or the default."""
    given = environment.get("MUSTER_HOME")
    return (Path(given) / "clusters" if given else DEFAULT_ROOT).expanduser()


def known_clusters(root: Path) -> list[KnownCluster]:
    """Return every cluster that has files here, up or not, by name."""
    try:
        entries = sorted(path for path in root.iterdir() if path.is_dir())
    except FileNotFoundError:
        return []
    found = [known_cluster(ClusterHome(path)) for path in entries]
    return [one for one in found if one.record or one.home.ledger.exists() or one.home.nodes.exists()]


def known_cluster(home: ClusterHome) -> KnownCluster:
    record = read_record(home)
    return KnownCluster(home, None if record is None or record.is_elsewhere else record)


def find_cluster(word: str | None, root: Path) -> KnownCluster:
    """Find a cluster by name, by cluster file, or as the only one. Raises ClusterError with the choices."""
    known = known_clusters(root)
    if word is None:
        return _the_only_one(known, root)
    found = {cluster.name: cluster for cluster in known}
    if word in found:  # names from before there was a rule included
        return found[word]
    name = cluster_name(word)
    if name in found:
        return found[name]
    raise ClusterError(f"no cluster {name!r} in {root}", fix=did_you_mean(name, found) or _choices(known))


def is_launched(word: str | None, root: Path) -> bool:
    """Return whether `muster up` has started the cluster elsewhere, so that its head knows its status."""
    try:
        name = None if word is None else cluster_name(word)
    except (ClusterError, ConfigError):
        return False  # told where the cluster is looked for
    if name is None:
        return False
    home = ClusterHome.of(name, root)
    record = read_record(home)
    return record is not None and record.head is not None and not home.status.is_file()


def cluster_name(word: str) -> str:
    """Return the name of the cluster; a word that names a file stands for the cluster of that file."""
    path = cluster_file(word)
    if path is not None:
        return load_config(path, sizes=any_size).cluster_name
    if not is_cluster_name(word):
        raise ClusterError(f"{word!r} is neither a file nor the name of a cluster", fix=f"{NAME_RULE}")
    return word


def cluster_file(word: str) -> Path | None:
    """Return the cluster file that a word names; None for the name of a cluster."""
    file = os.path.expanduser(word)  # these two of os.path never raise
    is_file = file.endswith((".yaml", ".yml", ".json")) or os.path.isfile(file)
    return Path(file) if is_file else None


def _the_only_one(known: list[KnownCluster], root: Path) -> KnownCluster:
    candidates = [cluster for cluster in known if cluster.record is not None] or known
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise ClusterError(
            f"no cluster in {root}", fix="`muster up examples/laptop.yaml` starts one on this computer"
        )
    raise ClusterError(f"several clusters in {root}", fix=f"name one: {_choices(candidates)}")


def _choices(known: list[KnownCluster]) -> str:
    names = [f"{cluster.name} ({'up' if cluster.record else 'down'})" for cluster in known]
    return f"there are {', '.join(names)}" if names else "none was started yet: `muster up FILE`"
