"""Compare two outcomes of the same scenarios value by value, with a list of deliberate differences.

A key of DELIBERATE is a pattern of places `scenario/part/...`; every difference must match one, and every
pattern must match a difference: what is not needed any more has to go.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
RECORDINGS = (HERE / "recorded" / "ray_tune.json", HERE / "recorded" / "ray_scripts.json")

DELIBERATE = {
    r"variants/variants/\d/0/2/1/e": "a choice's entry is what was tried, not the domain in it",
    r"refusals/no trainable": "a Tuner without a trainable is for ask() and tell(); fit() refuses it",
    r"refusals/chdir": "refused when it is said, not when the experiment starts",
    r"refusals/asha( mode)?": "arguments are refused with a ValueError that says why, not by an assertion",
    r"refusals/resume": "a word that means nothing is refused; Ray starts a new experiment",
    r"(what_functions_answer/trials/2|generators/trials/0)/progress\.csv/.*": (
        "keys that first appear in a later result get a column; Ray drops them from the table"
    ),
    r"output_to_files/files": "output is kept in the trial's directory; Ray leaves it in a temporary one",
    r"hooks//(1|10)/2": "a trial that has started is RUNNING when callbacks hear of it",
    r"fail_fast/raise": "the user's own exception, not one of Ray Core around it",
    r"(retries|too_many_failures)/trials/0/(rows|result\.json|progress\.csv/rows)": (
        "results after the checkpoint that a retry continues from are replaced; Ray has them twice"
    ),
    r"restored/resume_errored/trials/0/progress\.csv/rows/\d": "Ray writes rows that do not fit its header",
    r"restored/resume_errored/trials/0/(files|error\.txt)": "resumed, it ended well: no error is left",
    r"restored/restart_errored/trials/0/(directory|metrics/6/1|result.json/./6/1|progress.csv/rows/./6)": (
        "a restarted trial keeps its id and directory; Ray makes another one"
    ),
    r"(03_class_api|17_asha_of_a_class|46_default_resources|47_with_parameters)/.*/(files|error\.txt)": (
        "a class that cannot be saved ends well; Ray tries to save it at its end and notes a failure"
    ),
    r"47_with_parameters/beside": "large parameters are kept with the experiment, for a resume",
    r"12_experiment_plateau/(values/3|.*00003.*/rows)": (
        "a stopper gets each result once; Ray repeats the last one to it when a function has ended"
    ),
    r"22_pbt_replay/(values/3|.*/files)": (
        "the checkpoint with which a trial changed its config is kept; in Ray it is not counted"
    ),
    r"34_keep_the_best/(values/eval/.*|keep_eval/.*/files)": (
        "a nested score is found by its path; Ray does not find it and keeps the newest checkpoints"
    ),
    r"(39_restore|52_run_resume|73_restore_with_new_objects|81_stateful_callback)/.*/(files|error\.txt)": (
        "resumed, it ended well: no error is left"
    ),
    r"(52_run_resume|73_restore_with_new_objects|81_stateful_callback)/.*/rows": (
        "results that a resumed trial repeats are replaced, not doubled"
    ),
    r"58_log_to_file/.*/files": "output is kept in the trial's directory; Ray leaves it in a temporary one",
}


def recorded() -> dict:
    """Return what Ray did: every scenario, and the versions it was recorded with."""
    found: dict = {}
    for path in RECORDINGS:
        found |= json.loads(path.read_text(encoding="utf-8"))
    return found


def play(
    system: str, interpreter: str, out: Path, *scenarios: str, engine: str = "", with_costly: bool = False
) -> dict:
    """Return what every scenario leaves behind, in a separate process; of ours also on a Ray there."""
    settings = {
        "PARITY_SYSTEM": system,
        "PARITY_ENGINE": engine,
        "PARITY_COSTLY": str(int(with_costly)),
        "PYTHONWARNINGS": "ignore",
        "MUSTER_OLDER_API": "0",  # today's Ray refuses what older versions had
    }
    command = [interpreter, str(HERE / "scenarios" / "play.py"), str(out), *scenarios]
    done = subprocess.run(
        command,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(out.read_text(encoding="utf-8"))


def differences(theirs: object, ours: object, place: str = "") -> dict[str, tuple[object, object]]:
    """Return place -> (Ray's value, ours); lists of the same length and dicts are compared part by part."""
    if isinstance(theirs, dict) and isinstance(ours, dict):
        keys = list(dict.fromkeys([*theirs, *ours]))
        parts = [(key, theirs.get(key, "(nothing)"), ours.get(key, "(nothing)")) for key in keys]
    elif isinstance(theirs, list) and isinstance(ours, list) and len(theirs) == len(ours):
        parts = [(number, *pair) for number, pair in enumerate(zip(theirs, ours, strict=True))]
    else:
        return {} if theirs == ours else {place: (theirs, ours)}
    found: dict[str, tuple[object, object]] = {}
    for key, one, other in parts:
        found |= differences(one, other, f"{place}/{key}" if place else str(key))
    return found


def unexpected(found: dict) -> dict[str, tuple[object, object]]:
    """Return the differences to the recording that nobody gave a reason for."""
    theirs = recorded()
    everything = {
        place: values
        for name, outcome in found.items()
        if name != "versions" and "left out" not in outcome
        for place, values in differences(theirs[name], outcome, name).items()
    }
    return {place: values for place, values in everything.items() if reason(place) is None}


def reason(place: str) -> str | None:
    """Return the pattern that makes a difference at this place a deliberate one."""
    return next((pattern for pattern in DELIBERATE if re.fullmatch(pattern, place)), None)


def ray_interpreter() -> str | None:
    """Return a Python with Ray Tune: named by MUSTER_RAY_PYTHON, where "1" means this one."""
    named = os.environ.get("MUSTER_RAY_PYTHON")
    return sys.executable if named == "1" else named
