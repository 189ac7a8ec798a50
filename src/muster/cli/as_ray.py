"""Implement `muster as-ray`: run a command in which `import ray` finds muster."""

from __future__ import annotations

import os

import click

from muster.errors import ConfigError
from muster.ray_api.switch import turn_on

_EPILOG = """\b
Examples:
  muster as-ray -- chemprop hpopt --data-path data.csv --num-samples 10
  muster as-ray -- python train.py
"""


@click.command(
    epilog=_EPILOG,
    context_settings={
        "ignore_unknown_options": True,
        "allow_interspersed_args": False,
        "max_content_width": 88,
    },
)
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED, metavar="COMMAND...")
def as_ray(command: tuple[str, ...]) -> None:
    """Run a command in which muster takes the place of Ray.

    For libraries and console scripts that import ray.tune themselves, where Ray is not
    installed. Python scripts can also `import muster.as_ray` first.
    """
    try:
        turn_on()
    except ImportError as error:
        raise ConfigError(str(error)) from error
    try:
        os.execvp(command[0], command)
    except OSError as error:
        raise ConfigError(f"muster as-ray: {command[0]}: {error.strerror}", fix="check its name") from error
