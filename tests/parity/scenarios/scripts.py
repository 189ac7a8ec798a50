"""Run tests/parity/scripts: as they are with Ray Tune, with imports changed by `muster compat` with muster.

A script has `main(storage)`, which returns values. What its trials leave in the storage is compared as well,
but for files that differ from run to run (`FILES_VARY`). A script is left out where a library that it needs
is missing (`NEEDS`), and one whose libraries take long to import (`IS_COSTLY`) unless PARITY_COSTLY=1.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import re
import sys
from pathlib import Path

import seen
from system import NAME, ROOT

FOLDER = Path(__file__).parent.parent / "scripts"
# Of the experiment itself. Ray has a JSON file and pickles per session, we have a database and the trainable:
# an experiment can be resumed without its script.
STATE = (
    r"\.validate_storage_marker|tuner\.pkl|(experiment_state|basic-variant-state|search_gen_state)-DATE\.json"
    r"|(searcher-state|callback-states)-DATE\.pkl|experiment\.sqlite.*|trainable\.pkl"
)


def _scenario(path: Path):
    def scenario():
        return _run(path)

    scenario.__name__ = path.stem
    return scenario


def _run(path: Path) -> dict:
    why_not = _why_not(path)
    if why_not:
        return {"left out": why_not}
    storage = ROOT / path.stem
    storage.mkdir()
    script = importlib.import_module(_runnable(path).stem)
    found = {"values": seen.plain(script.main(str(storage)))}
    if not getattr(script, "FILES_VARY", False):
        found |= _left(storage)
    return found


def _why_not(path: Path) -> str:
    """Why a script cannot run here, read from its constants: importing it may fail."""
    assigned = (each for each in ast.parse(path.read_text()).body if isinstance(each, ast.Assign))
    constants = {each.targets[0].id: ast.literal_eval(each.value) for each in assigned}
    missing = [name for name in constants.get("NEEDS", ()) if importlib.util.find_spec(name) is None]
    if missing:
        return f"needs {', '.join(missing)}"
    is_wanted = os.environ.get("PARITY_COSTLY") == "1" or not constants.get("IS_COSTLY")
    return "" if is_wanted else "its libraries take long to import: `make parity` runs it"


def _runnable(path: Path) -> Path:
    """The script where trials can import it, with the imports of this system."""
    folder = ROOT / "scripts"
    if str(folder) not in sys.path:
        folder.mkdir(exist_ok=True)
        sys.path.insert(0, str(folder))
    source = path.read_text()
    if NAME != "ray":
        from muster.cli.compat import rewritten

        source = rewritten(source)
    target = folder / path.name
    target.write_text(source)
    return target


def _left(storage: Path) -> dict:
    """The directories of trials by name, and files beside them."""
    trials = sorted((file.parent for file in storage.rglob("params.json")), key=lambda each: each.name)
    found = {seen.named(str(each.relative_to(storage))): _compact(seen.trial_files(each)) for each in trials}
    inside = tuple(f"{each}/" for each in trials)
    rest = [each for each in storage.rglob("*") if each.is_file() and not str(each).startswith(inside)]
    names = {seen.named(str(each.relative_to(storage))) for each in rest}
    found["beside"] = sorted(name for name in names if not re.fullmatch(STATE, name.rpartition("/")[2]))
    return found


def _compact(about: dict) -> dict:
    """Rows of result.json as values below the keys they share; without what is masked, and the config."""
    rows = about.pop("result.json", None)
    if rows is None:
        return about
    keys = [[key for key, _ in row] for row in rows]
    shared = keys[0] if keys and all(each == keys[0] for each in keys) else keys
    left_out = {*seen.VOLATILE, "config"}
    about["result.json"] = {
        "keys": shared,
        "config": rows[-1] and dict(rows[-1]).get("config") if rows else None,
        "rows": [[value for key, value in row if key not in left_out] for row in rows],
    }
    return about


SCENARIOS = tuple(_scenario(path) for path in sorted(FOLDER.glob("*.py")))
