"""Implement `muster monitor`, the daemon that runs a cluster; `muster up` starts it on the head."""

from __future__ import annotations

import json
import logging
import math
import os
import signal
import sys
import threading
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

ONCE_WAIT_S = 15.0

_EPILOG = """\b
Examples:
  muster monitor cluster.yaml --address 127.0.0.1:6379
  muster monitor cluster.yaml --shadow     next to Ray's own autoscaler

On SIGTERM or Ctrl-C, the monitor finishes its tick and exits with 0; machines keep running.
Exit code 2 and one line: a config or a provider that cannot be used, a token that is refused, another monitor
or Ray's own autoscaler that already runs the cluster, or, with --once, a head that does not answer."""


@click.command(epilog=_EPILOG, context_settings={"max_content_width": 88})
@click.argument("config", type=_FILE)
@click.option(
    "--address",
    help="HOST:PORT of the head's GCS. Default: RAY_ADDRESS, or the cluster that `muster up` started.",
)
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    help="The cluster's directory. Default: its name in $MUSTER_HOME/clusters or ~/.muster/clusters.",
)
@click.option("--once", is_flag=True, help="Run one tick and exit; wait up to 15 seconds for a head.")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.05, max=3600),
    metavar="S",
    help="Seconds between two ticks while something changes.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    metavar="P",
    help="Port of the Prometheus metrics; 0: any free port. Default: 44217, or any when that is taken.",
)
@click.option(
    "--metrics-host",
    metavar="HOST",
    help="Address to serve the metrics on. Default: that of the head; loopback when the head is there.",
)
@click.option(
    "--metrics-token-file",
    "metrics_token",
    type=click.Path(dir_okay=False, path_type=Path),
    help="File of the bearer token that readers of the metrics must send. Default: metrics_token in the "
    "home, if it exists.",
)
@click.option(
    "--log-format",
    type=click.Choice(["text", "json"]),
    help="Format of the log; json: an object per line. Default: MUSTER_LOG_FORMAT, or text.",
)
@click.option(
    "--shadow",
    is_flag=True,
    help="Plan next to the autoscaler that runs the cluster, change nothing, and report differences.",
)
@click.option(
    "--shadow-boot",
    "boot_s",
    type=click.FloatRange(min=0),
    default=60.0,
    metavar="S",
    help="With --shadow: seconds that a machine boots before muster charges for it. Default: 60.",
)
def monitor(
    config: Path,
    address: str | None,
    home: Path | None,
    once: bool,
    log_format: str | None,
    **given: Any,  # noqa: ANN401 - the options above, as MonitorOptions names them
) -> None:
    """Run the autoscaler of one Ray cluster: launch nodes for waiting requests, remove idle ones.

    CONFIG is the cluster's YAML file; edits are applied while the monitor runs. The head must have been
    started with `--no-monitor`: the monitor refuses to run next to Ray's own autoscaler. With --shadow, Ray's
    autoscaler keeps running the cluster: CONFIG is its YAML file, and muster writes nothing into the cluster.
    """
    from muster.autoscaler.build import MonitorOptions, StartCancelled, build_monitor
    from muster.autoscaler.connect import find_head_address
    from muster.autoscaler.home import ClusterHome
    from muster.autoscaler.known_clusters import clusters_root
    from muster.autoscaler.shadow import HOME_SUFFIX
    from muster.config.load import any_size
    from muster.providers.kind import load_config

    log_to_stderr(log_format)
    logger = logging.getLogger("muster.monitor")
    environment = dict(os.environ)  # nodes inherit it as it is before Ray's client is set up
    where = ClusterHome(home) if home is not None else None
    suffix = HOME_SUFFIX if given["shadow"] else ""
    if where is None:
        name = load_config(config, sizes=any_size).cluster_name
        where = ClusterHome.of(name + suffix, clusters_root(environment))
    stop = stop_on_signals()
    options = MonitorOptions(
        config=config,
        home=where,
        head=find_head_address(where, address, environment),
        head_wait_s=ONCE_WAIT_S if once else math.inf,
        **given,
    )
    try:
        loop = build_monitor(options, environment, stop)
        role = "watching" if options.shadow else "running"
        logger.info("%s the cluster at %s; its files are in %s", role, options.head.address, where.path)
        loop.run(stop, once=once)
    except StartCancelled:
        pass
    logger.info("the monitor has ended")


def stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())
    return stop


class JsonLines(logging.Formatter):
    """Writes each record as an object in one line."""

    def format(self, record: logging.LogRecord) -> str:
        at = datetime.fromtimestamp(record.created, timezone.utc).isoformat(timespec="milliseconds")
        found = {"time": at, "level": record.levelname.lower(), "logger": record.name}
        found["message"] = record.getMessage()
        if record.exc_info:
            found["traceback"] = self.formatException(record.exc_info)
        return json.dumps(found, ensure_ascii=False)


def log_to_stderr(log_format: str | None = None) -> None:
    """The daemon's log is its error stream; `muster up` sends it to monitor.log."""
    handler = logging.StreamHandler(sys.stderr)
    is_json = (log_format or os.environ.get("MUSTER_LOG_FORMAT")) == "json"
    text = logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s")
    handler.setFormatter(JsonLines() if is_json else text)
    root = logging.getLogger("muster")
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    root.propagate = False
