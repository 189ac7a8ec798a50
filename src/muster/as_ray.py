"""Make muster answer for Ray in this program and its child processes: importing this module switches it on.

`python -m muster.as_ray SCRIPT ARGS`, `-m MODULE` or `-c CODE` run a program this way.
"""

from __future__ import annotations

from muster.ray_api.switch import run_program, turn_on

turn_on()

if __name__ == "__main__":
    run_program()
