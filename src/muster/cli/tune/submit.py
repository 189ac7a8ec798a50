"""Imported lazily: `muster tune submit`, by which a script becomes a Slurm job that chains itself.

Shortly before its time limit the job submits its successor and kills the script; pilots keep running. In the
successor, each `fit()` of the script resumes the experiment that it began before.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from muster.base.ids import RandomIds
from muster.errors import ConfigError
from muster.host.atomic_write import atomic_write
from muster.host.machine import program
from muster.slurm.config import SlurmConfig, job_options
from muster.slurm.jobs import fix_of
from muster.slurm.wire import SlurmRefused, SlurmUnreachable, SlurmWire, require_commands
from muster.tune.execution.launch import CHAIN

_BEFORE_S = 120.0  # Slurm checks limits once a minute: the signal may come a minute early
_JOB = """\
#!/bin/bash
{options}
cd {cwd}
{setup}
export {chain}={folder}/experiments
continue_in_next_job() {{
    until sbatch --parsable --dependency=afterany:$SLURM_JOB_ID {folder}/job.sh >> {folder}/jobs; do
        sleep 5
    done
    kill -KILL $driver
    exit 0
}}
trap continue_in_next_job USR2
trap : TERM  # the driver gets it too, and ends its trials
{command} &
driver=$!
while kill -0 $driver 2> /dev/null; do wait $driver; code=$?; done
exit $code
"""


def submitted(script: Path, arguments: Sequence[str], config: SlurmConfig, wire: SlurmWire) -> list[str]:
    """Submit the driver, and return how to watch it."""
    folder = Path.cwd() / "muster-jobs" / f"{script.stem}{RandomIds().fresh('')[:7]}"
    folder.mkdir(parents=True)
    text = job_script(script.absolute(), arguments, config, folder)
    atomic_write(folder / "job.sh", text.encode())
    try:
        job_id = wire.sbatch((), text)
        atomic_write(folder / "jobs", f"{job_id}\n".encode())
        _cancel_if_stuck(job_id, wire)
    except SlurmRefused:
        shutil.rmtree(folder)
        raise
    place = shlex.quote(str(folder))
    return [
        f"Submitted job {job_id}. It submits its successor before its time limit.",
        f"Output:       tail -F {place}/{job_id}.out",
        f"Experiments:  {program()} tune ls --watch $(tail -n 1 {place}/experiments)",
        f"Stop it:      scancel $(cat {place}/jobs)",
    ]


def _cancel_if_stuck(job_id: str, wire: SlurmWire) -> None:
    """Cancel a job that Slurm has accepted and will never start; one that the user holds may wait."""
    with contextlib.suppress(SlurmUnreachable):
        for job in wire.squeue():
            fix = fix_of(job.reason) if job.job_id == job_id and job.is_waiting else ""
            if fix and not job.reason.startswith("JobHeld"):
                wire.scancel([job_id])
                raise SlurmRefused(f"slurm: job {job_id} can never start ({job.reason})", fix=fix)


def job_script(script: Path, arguments: Sequence[str], config: SlurmConfig, folder: Path) -> str:
    """Return the batch script of the driver; its successors run the same file."""
    before_s = min(_BEFORE_S, (config.time_s or 4 * _BEFORE_S) / 4)
    options = [
        *(f"--job-name=muster-{script.stem}", f"--output={folder}/%j.out", f"--signal=B:USR2@{before_s:.0f}"),
        *("--requeue", *job_options(config, cpus=config.pilot_cpus or 1, memory=config.pilot_memory)),
        *config.extra,
    ]
    python = config.python or shlex.quote(sys.executable)
    return _JOB.format(
        options="\n".join(f"#SBATCH {shlex.quote(option)}" for option in options),
        cwd=shlex.quote(str(Path.cwd())),
        setup="\n".join(config.setup),
        chain=CHAIN,
        folder=shlex.quote(str(folder)),
        command=f"{python} {shlex.join([str(script), *arguments])}",
    )


@click.command(short_help="Run a script as a Slurm job that continues after its time limit.")
@click.argument("script", type=click.Path(path_type=Path))
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@click.option("--partition", "-p", help="Partition of the job.")
@click.option("--account", "-A", help="Account to charge.")
@click.option("--qos", help="Quality of service.")
@click.option("--time", help="Time limit of one job of the chain, e.g. 12:00:00.")
@click.option("--cpus", "pilot_cpus", type=click.IntRange(min=1), help="CPUs of the script. Default: 1.")
@click.option("--memory", "pilot_memory", help="Memory of the script, e.g. 4G.")
@click.option("--setup", multiple=True, help="Shell command to run first, e.g. 'module load cuda'.")
@click.option("--extra", multiple=True, help="Additional option of sbatch, e.g. --exclude=n7.")
def submit(script: Path, arguments: tuple[str, ...], **place: Any) -> None:  # noqa: ANN401
    """Run SCRIPT with ARGUMENTS as a Slurm job that submits its successor before its time limit.

    In the successor, each `fit()` of the script resumes the experiment that it began before.

    \b
    Examples:
      muster tune submit train.py --partition cpu --time 12:00:00
      muster tune submit train.py -- --epochs 20
    """
    from muster.cli.tune.command import print_lines

    try:
        config = SlurmConfig(**{**place, "setup": list(place["setup"]), "extra": list(place["extra"])})
    except ValueError as error:
        raise ConfigError(str(error)) from error
    if not script.is_file():
        raise ConfigError(f"{script}: there is no such script")
    require_commands()
    print_lines(submitted(script, arguments, config, SlurmWire()))
