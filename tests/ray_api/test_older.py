"""Scripts in the manner of public ones for Ray 0.8 to 2.6: they run, and most warn with today's form."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

SCRIPTS = sorted((Path(__file__).parent / "older").glob("*.py"))

RUN_ALL = """
import json, os, runpy, sys, traceback, warnings
import muster.as_ray, ray
found = {}
for path in sys.argv[1:]:
    folder = os.path.basename(path)[:-3]
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    os.environ["HOME"] = os.getcwd()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            runpy.run_path(path, run_name="__main__")
            error = ""
        except BaseException as problem:
            traceback.print_exc()
            error = f"{type(problem).__name__}: {problem}"
    older = [str(each.message) for each in caught if "any more in Ray" in str(each.message)]
    found[folder] = [error, older]
    ray.shutdown()  # not every script does
    os.chdir("..")
print(json.dumps(found))
"""


@pytest.mark.slow
def test_scripts_of_older_versions_run_and_most_of_them_are_told_what_to_write(rayless):
    assert len(SCRIPTS) == 28
    done = rayless.run("-c", RUN_ALL, *map(str, SCRIPTS))
    found = json.loads(done.stdout.splitlines()[-1])
    assert {name: error for name, (error, _) in found.items() if error} == {}, done.stderr[-6000:]
    assert sum(bool(older) for _, older in found.values()) >= 23


@pytest.mark.slow
def test_the_layer_can_be_turned_off(rayless):
    script = str(Path(__file__).parent / "older" / "r21_log_dir.py")
    done = rayless.run("-m", "muster.as_ray", script, code=1, MUSTER_OLDER_API="0")
    assert done.stderr.strip().splitlines()[-1].startswith("DeprecationWarning")
