"""Implement `muster report`: a shell script reports a result of its trial."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import click

from muster.errors import TuneError
from muster.session.checkpoint import Checkpoint
from muster.session.child import child_session
from muster.session.report import REPORT_TO
from muster.session.session import TrialStopped

STOP = 3


@click.command()
@click.argument("values", metavar="NAME=VALUE...", nargs=-1, required=True)
@click.option(
    "--checkpoint", type=click.Path(exists=True, file_okay=False), help="Checkpoint directory to keep."
)
def report(values: tuple[str, ...], checkpoint: Path | None) -> None:
    """Report a result from a script that runs in a trial.

    Waits for the scheduler's answer. A script that ignores exit code 3 gets the stop signal.

    \b
    Examples:
      muster report loss=0.3 accuracy=0.9
      muster report loss=0.3 --checkpoint out/step-10 || exit 0

    Exit codes: 0 continue; 2 bad input, or not in a trial; 3 stop.
    """
    metrics = dict(_parsed(text) for text in values)
    session = child_session()
    if session is None:
        raise TuneError(
            f"muster report: {REPORT_TO} is not set", fix="run it in a command of `muster tune run`"
        )
    try:
        session.report(metrics, None if checkpoint is None else Checkpoint(checkpoint))
    except TrialStopped:
        sys.exit(STOP)


def _parsed(text: str) -> tuple[str, Any]:
    name, is_given, value = text.partition("=")
    if not is_given or not name:
        raise TuneError(f"muster report {text!r}: is not NAME=VALUE", fix="write loss=0.3")
    for read in (json.loads, float):
        try:
            return name, read(value)
        except ValueError:
            continue
    return name, value
