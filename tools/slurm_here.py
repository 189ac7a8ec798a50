"""Start and stop a small real Slurm on this computer: munge, one controller, several nodes.

Usage: python tools/slurm_here.py start DIR [--nodes 4] [--cpus 2] | stop DIR | why
Needs root and Debian's packages munge, slurmctld, slurmd and slurm-client.
`why` prints what is missing. After the start: export SLURM_CONF=DIR/slurm.conf
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

PROGRAMS = ("munged", "munge", "slurmctld", "slurmd", "sbatch", "squeue", "scancel", "scontrol")
SEARCHED = os.pathsep.join((os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"))
START_S = 60.0
KEY, RUN = Path("/etc/munge/munge.key"), Path("/run/munge")

CONFIG = """\
ClusterName=here
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/%n.log
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/%n.pid
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_min_interval=100000
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=500
SlurmdParameters=config_overrides
ReturnToService=2
SlurmdTimeout=30
KillWait=5
MinJobAge=60
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs={cpus} RealMemory=2000
PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=60 PriorityTier=1 State=UP
PartitionName=urgent Nodes=n[1-{nodes}] MaxTime=60 PriorityTier=10 State=UP
"""


def why_not() -> str:
    """Return what keeps this computer from running a Slurm; "" when nothing does."""
    missing = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if missing:
        return f"no {', '.join(missing)}: install munge slurmctld slurmd slurm-client"
    return "" if os.geteuid() == 0 else "the daemons of Slurm need root"


def start(folder: Path, nodes: int = 4, cpus: int = 2) -> Path:
    """Start everything, wait for an idle node, and return the path of `slurm.conf`."""
    for name in ("state", "log", "run", *(f"spool/n{number}" for number in range(1, nodes + 1))):
        (folder / name).mkdir(parents=True, exist_ok=True)
    _start_munge()
    first, config = random.randrange(20000, 29000), folder / "slurm.conf"
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    ports = {"port": port, "first": first, "last": first + nodes - 1}
    host = socket.gethostname()
    config.write_text(CONFIG.format(host=host, folder=folder, nodes=nodes, cpus=cpus, **ports))
    start_controller(config)
    for number in range(1, nodes + 1):
        start_node(config, f"n{number}")
    _wait_for_nodes(config, nodes)
    return config


def start_controller(config: Path) -> None:
    _run("slurmctld", "-f", str(config))


def start_node(config: Path, name: str) -> None:
    _run("slurmd", "-f", str(config), "-N", name)


def stop(folder: Path) -> None:
    """End the daemons that `start` has started there, nodes first."""
    for file in sorted((folder / "run").glob("*.pid"), reverse=True):
        end(file)


def end(file: Path, number: int = signal.SIGTERM) -> None:
    """Send a signal to the daemon of a pid file."""
    try:
        os.kill(int(file.read_text()), number)
    except (OSError, ValueError):
        return


def _start_munge() -> None:
    munge = shutil.which("munge", path=SEARCHED) or "munge"
    if subprocess.run([munge, "-n"], capture_output=True, check=False).returncode == 0:
        return
    RUN.mkdir(parents=True, exist_ok=True)
    if not KEY.exists():
        KEY.parent.mkdir(parents=True, exist_ok=True)
        KEY.write_bytes(os.urandom(1024))
        KEY.chmod(0o400)
    for path in (RUN, KEY):
        shutil.chown(path, "munge", "munge")
    munged = shutil.which("munged", path=SEARCHED) or "munged"
    subprocess.run([munged, "--force"], user="munge", group="munge", check=True)


def _wait_for_nodes(config: Path, nodes: int) -> None:
    give_up = time.monotonic() + START_S
    environment = {**os.environ, "SLURM_CONF": str(config)}
    command = ["sinfo", "-h", "-N", "-p", "main", "-t", "idle", "-o", "%N"]
    while time.monotonic() < give_up:
        shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if len(shown.stdout.split()) == nodes:
            return
        time.sleep(0.2)
    raise SystemExit(f"no {nodes} idle nodes after {START_S:.0f} s: see {config.parent}/log")


def _run(program: str, *arguments: str) -> None:
    path = shutil.which(program, path=SEARCHED) or program
    subprocess.run([path, *arguments], check=True, stdin=subprocess.DEVNULL)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("action", choices=["start", "stop", "why"])
    parser.add_argument("folder", nargs="?", type=Path)
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--cpus", type=int, default=2)
    asked = parser.parse_args()
    if asked.action == "why":
        sys.stdout.write(f"{why_not() or 'a Slurm can be started here'}\n")
    elif asked.folder is None:
        parser.error("DIR is missing")
    elif asked.action == "stop":
        stop(asked.folder.absolute())
    elif reason := why_not():
        sys.exit(reason)
    else:
        config = start(asked.folder.absolute(), asked.nodes, asked.cpus)
        sys.stdout.write(f"export SLURM_CONF={config}\n")


if __name__ == "__main__":
    main()
