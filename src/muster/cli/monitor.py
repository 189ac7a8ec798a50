"""Implements `muster monitor`, the daemon that runs a cluster; `muster up` starts it on the head."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from pathlib import Path

import click

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)

_EPILOG = """Ends on SIGTERM or Ctrl-C after the tick under way, exit code 0; machines stay as they are.
Exit code 2 and one line: a config that cannot be used, a token that is refused, or another monitor that
already runs the cluster."""


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
@click.option("--once", is_flag=True, help="Run one tick and exit.")
@click.option(
    "--interval",
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
def monitor(
    config: Path,
    address: str | None,
    home: Path | None,
    once: bool,
    interval: float | None,
    metrics_port: int | None,
) -> None:
    """Run the autoscaler of one Ray cluster: launch nodes for waiting requests, remove idle ones.

    CONFIG is the cluster's YAML file; edits are applied while the monitor runs. The head must have been
    started with `--no-monitor`, otherwise Ray's own autoscaler runs as well.
    """
    from muster.autoscaler.build import MonitorOptions, StartCancelled, build_monitor
    from muster.autoscaler.connect import find_head_address
    from muster.autoscaler.home import ClusterHome
    from muster.autoscaler.known_clusters import clusters_root
    from muster.config.load import load_config

    _log_to_stderr()
    logger = logging.getLogger("muster.monitor")
    environment = dict(os.environ)  # nodes inherit it as it is before Ray's client is set up
    where = ClusterHome(home) if home is not None else None
    where = where or ClusterHome.of(load_config(config).cluster_name, clusters_root(environment))
    stop = _stop_on_signals()
    options = MonitorOptions(
        config=config,
        home=where,
        head=find_head_address(where, address, environment),
        interval_s=interval,
        metrics_port=metrics_port,
    )
    try:
        loop = build_monitor(options, environment, stop)
        logger.info("running the cluster at %s; its files are in %s", options.head.address, where.path)
        loop.run(stop, once=once)
    except StartCancelled:
        pass
    logger.info("the monitor has ended")


def _stop_on_signals() -> threading.Event:
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: stop.set())
    return stop


def _log_to_stderr() -> None:
    """The daemon's log is its error stream; `muster up` sends it to monitor.log."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger("muster")
    root.setLevel(logging.INFO)
    root.addHandler(handler)
    root.propagate = False
