"""`muster compat` on scripts as users of Ray Tune write them."""

from __future__ import annotations

import re
import shutil
import stat
from pathlib import Path

import pytest

from muster import tune
from muster.cli import compat
from muster.cli.compat import examine, rewritten, scripts_in

RAY_EXPERIMENT = Path(__file__).parents[1] / "tune" / "analysis" / "ray_experiment"
SCRIPT = """\
import os, ray
import ray.tune as rt
from ray import tune
from ray.tune import Callback, CLIReporter
from ray.tune.schedulers import (
    ASHAScheduler,  # stops early
    PopulationBasedTraining as PBT,
)


def train(config):
    from ray.tune import report; report({"loss": 1})
    rt.report({"loss": 2})


if __name__ == "__main__":
    ray.init(num_cpus=2)
    scheduler = ASHAScheduler(max_t=10)
    stopper = ray.tune.stopper.MaximumIterationStopper(3)
    tune.Tuner(train, run_config=tune.RunConfig(stop=stopper)).fit()
"""

REWRITTEN = """\
import os
import ray
import muster.tune.stopper
import muster.tune as rt
from muster import tune
from muster.tune import Callback, CLIReporter
from muster.tune.schedulers import (
    ASHAScheduler,  # stops early
    PopulationBasedTraining as PBT,
)


def train(config):
    from muster.tune import report; report({"loss": 1})
    rt.report({"loss": 2})


if __name__ == "__main__":
    ray.init(num_cpus=2)
    scheduler = ASHAScheduler(max_t=10)
    stopper = muster.tune.stopper.MaximumIterationStopper(3)
    tune.Tuner(train, run_config=tune.RunConfig(stop=stopper)).fit()
"""


def test_imports_of_ray_tune_become_ours_and_the_rest_of_the_script_stays():
    assert rewritten(SCRIPT) == REWRITTEN
    assert rewritten(REWRITTEN) == REWRITTEN


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import ray.tune\nray.tune.report({})\n", "import muster.tune\nmuster.tune.report({})\n"),
        (
            "import ray.tune\nray.init()\nray.tune.report({})\n",
            "import muster.tune\nimport ray\nray.init()\nmuster.tune.report({})\n",
        ),
        ("import ray as r\nr.tune.run(f)\n", "import ray as r\nimport muster.tune\nmuster.tune.run(f)\n"),
        ("import ray.tune.search as search\n", "import muster.tune.search as search\n"),
        ("from ray.tune import *\n", "from muster.tune import *\n"),
        ("from ray import tune as t, remote\n", "from muster import tune as t\nfrom ray import remote\n"),
        ("if 1: from ray import tune, get\n", "if 1: from muster import tune; from ray import get\n"),
        ("try:\n\tfrom ray import tune, get\nfinally: 1\n", None),
        ("from .ray import tune\nfrom rayon import tune\nimport rayon.tune\n", "same"),
        ("from ray import data\nimport ray\nray.data.range(3)\n", "same"),
        ("tune = 1\ntune.anything\n", "same"),
        ("from ray.air import RunConfig\n", "from muster.air import RunConfig\n"),
        (
            "# é\r\nx = 'äé'; import ray.tune as t\r\nfrom ray import tune  # é\r\n",
            "# é\r\nx = 'äé'; import muster.tune as t\r\nfrom muster import tune  # é\r\n",
        ),
    ],
)
def test_forms_of_imports(before, after):
    found = rewritten(before)
    if after is None:
        assert "muster" in found
        compile(found.removeprefix("\ufeff"), "script", "exec")
        return
    assert found == (before if after == "same" else after)


def test_a_name_that_is_missing_is_listed_and_keeps_its_import(tmp_path):
    script = tmp_path / "odd.py"
    script.write_text(
        "from ray import tune\n"
        "from ray.tune.schedulers import ASHAScheduler, FoxScheduler\n"
        "tune.Tunr(train)\n"
        "tune.RunConfig(name='a', colour='red')\n"
        "ASHAScheduler(max_t=3, max_q=4)\n"
        "tune.nothing.like.it\n"
    )
    report = examine(script)
    assert [(line, name) for line, name, *_ in report.findings] == [
        (2, "ray.tune.schedulers.FoxScheduler"),
        (3, "ray.tune.Tunr"),
        (4, "ray.tune.RunConfig(colour=...)"),
        (5, "ray.tune.schedulers.ASHAScheduler(max_q=...)"),
        (6, "ray.tune.nothing.like.it"),
    ]
    assert report.findings[1].advice.endswith(" muster.tune.Tuner?")
    assert report.after.splitlines()[1:3] == [
        "from muster.tune.schedulers import ASHAScheduler",
        "from ray.tune.schedulers import FoxScheduler",
    ]


def test_a_name_that_lives_elsewhere_is_found(tmp_path):
    script = tmp_path / "moved.py"
    script.write_text("from ray.tune.tracking import MLflowLoggerCallback\n")
    assert {"MLflowLoggerCallback", "from"} <= set(examine(script).findings[0].advice.split())
    assert " muster." in examine(script).findings[0].advice


def test_train_moves_with_tune():
    assert rewritten("from ray import train, tune\n") == "from muster import train, tune\n"


def test_all_of_ray_train_stays_in_a_script_with_a_trainer():
    """Trainers take the configs of Ray Train, and their workers report to Ray Train."""
    script = """import ray.train
import ray.tune
from ray import train, tune
from ray.train import RunConfig, ScalingConfig
from ray.tune.integration.ray_train import TuneReportCallback

def work(config):
    ray.train.report({"loss": ray.tune.uniform(0, 1).sample()})

run = RunConfig(callbacks=[TuneReportCallback()], worker_runtime_env={})
"""
    assert (
        rewritten(script)
        == """import ray.train
import muster.tune
import ray
from muster import tune
from ray import train
from ray.train import RunConfig, ScalingConfig
from muster.tune.integration.ray_train import TuneReportCallback

def work(config):
    ray.train.report({"loss": muster.tune.uniform(0, 1).sample()})

run = RunConfig(callbacks=[TuneReportCallback()], worker_runtime_env={})
"""
    )


def test_trainers_stay_with_ray_and_are_listed(tmp_path):
    script = tmp_path / "trainer.py"
    script.write_text("from ray.train.torch import TorchTrainer\nimport ray.train.torch\n")
    report = examine(script)
    assert (report.before == report.after, {line for line, *_ in report.findings}) == (True, {1, 2})
    assert all(finding.advice for finding in report.findings)


def test_write_shows_the_diff_and_keeps_backups(muster, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    script.chmod(0o750)
    (tmp_path / "train.py.bak").write_text("an older one")
    shown = muster("compat", str(script))
    assert (shown.exit_code, script.read_text()) == (0, SCRIPT)
    lines = shown.output.splitlines()
    assert lines[0].startswith(f"{script}:17: ray.init: ")
    assert (
        lines[1:]
        == "1 read, 1 with imports to change, 0 missing, 1 from Ray itself; --write changes them".splitlines()
    )
    written = muster("compat", str(script), "--write")
    assert written.exit_code == 0
    assert "-from ray import tune\n" in written.output and "+from muster import tune\n" in written.output
    assert (script.read_text(), (tmp_path / "train.py.bak2").read_text()) == (REWRITTEN, SCRIPT)
    assert (tmp_path / "train.py.bak").read_text() == "an older one"
    assert stat.S_IMODE(script.stat().st_mode) == 0o750
    again = muster("compat", str(script), "--write").output.splitlines()
    assert (len(again), re.findall(r"\d+", again[1])) == (2, ["1", "0", "0", "1"])


def test_a_folder_is_searched_and_what_is_missing_makes_the_exit_code_1(muster, tmp_path):
    for name in ("a.py", "inner/b.py", ".hidden/c.py", "inner/__pycache__/d.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("from ray import tune\ntune.nothing_like_it\n")
    (tmp_path / "broken.py").write_text("def f(:\n")
    assert [each.name for each in scripts_in(tmp_path)] == ["a.py", "broken.py", "b.py"]
    result = muster("compat", str(tmp_path))
    lines = result.output.splitlines()
    assert (result.exit_code, re.findall(r"\d+", lines[-1])) == (1, ["3", "2", "3"])
    assert lines[0].startswith(f"{tmp_path / 'a.py'}:2: ray.tune.nothing_like_it: ")
    assert lines[1].startswith(f"{tmp_path / 'broken.py'}:1: (the file): ")


def test_other_encodings_are_kept(muster, tmp_path):
    script = tmp_path / "latin.py"
    script.write_bytes(
        "# -*- coding: latin-1 -*-\nx = '\xe9'; from ray import tune  # \xe9\n".encode("latin-1")
    )
    assert muster("compat", str(script), "--write").exit_code == 0
    assert script.read_bytes() == b"# -*- coding: latin-1 -*-\nx = '\xe9'; from muster import tune  # \xe9\n"
    script.write_bytes("\ufeffx = '\xe9'; from ray import tune\r\n".encode())
    assert muster("compat", str(script), "--write").exit_code == 0
    assert script.read_bytes() == "\ufeffx = '\xe9'; from muster import tune\r\n".encode()


def test_a_file_that_does_not_exist_is_bad_input(muster, tmp_path):
    result = muster("compat", str(tmp_path / "none.py"))
    assert (result.exit_code, str(tmp_path / "none.py") in result.output) == (2, True)


FINDINGS = """\
import ray
from ray import cloudpickle, tune
from ray.air import session
from ray.tune import Tuner

@ray.remote
def help(): return ray.get(ray.put(1))

def train(config):
    tune.report(loss=0.5)
    session.report(loss=0.5)
    tune.Checkpoint.from_dict({})

Tuner.restore(path="x", trainable=train)
tune.RunConfig(local_dir="x", colour="red")
tune.RunConfig(local_dir=None)
tune.run(train, chdir_to_trial_dir=False)
"""
FOUND = [
    (2, "cloudpickle"),
    (6, "remote"),
    (7, "get"),
    (7, "put"),
    (10, "tune.report(loss=...)"),
    (11, "air.session.report(loss=...)"),
    (12, "tune.Checkpoint.from_dict"),
    (15, "tune.RunConfig(colour=...)"),
    (15, "tune.RunConfig(local_dir=...)"),
    (17, "tune.run(chdir_to_trial_dir=...)"),
]


def test_a_second_run_after_write_names_what_the_first_one_named(muster, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(FINDINGS)
    before = examine(script).findings
    assert muster("compat", str(script), "--write").exit_code == 1
    assert "from muster.air import session\n" in script.read_text()
    after = examine(script).findings
    assert [(line, name.partition(".")[2]) for line, name, *_ in before] == FOUND
    rewritten_forms = (
        "tune.report(loss=...)",
        "air.session.report(loss=...)",
        "tune.RunConfig(local_dir=...)",
    )
    left = [name for _, name in FOUND if name not in rewritten_forms]
    assert [name.partition(".")[2] for _, name, *_ in after] == left
    advice = {name.partition(".")[2]: text for _, name, text, _ in before}
    assert " report({'loss': ...})" in advice["air.session.report(loss=...)"]
    assert "storage_path" in advice["tune.RunConfig(local_dir=...)"]
    assert "from_directory" in advice["tune.Checkpoint.from_dict"]


OLDER = """\
from ray import tune
from ray.tune.suggest.hyperopt import HyperOptSearch  # a comment
from ray.tune.suggest import (
    ConcurrencyLimiter,
)

def train(config):
    tune.report(loss=(config["x"]), **more, trial=tune.get_trial_id(),
    )

assert isinstance(space, tune.sample.Float)
tune.run(train, local_dir = "x", search_alg=tune.suggest.create_searcher("random"))
"""
TODAYS = """\
from muster import tune
from muster.tune.search.hyperopt import HyperOptSearch  # a comment
from muster.tune.search import (
    ConcurrencyLimiter,
)

def train(config):
    tune.report({"loss": (config["x"]), **more, "trial": tune.get_context().get_trial_id(),
    })

assert isinstance(space, tune.search.sample.Float)
tune.run(train, storage_path = "x", search_alg=tune.search.create_searcher("random"))
"""


def test_forms_of_older_versions_become_todays():
    assert rewritten(OLDER) == TODAYS
    assert rewritten(TODAYS) == TODAYS


def test_a_library_is_read_and_what_it_would_miss_is_named(muster, tmp_path, monkeypatch):
    folder = tmp_path / "rayuser"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "import ray\nfrom ray import tune as t\nfrom ray.train.torch import TorchTrainer\n"
        "t.search.sample.Float, ray.init, t.run(1), ray.util.annotations.PublicAPI\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    result = muster("compat", "--library", "rayuser")
    assert (result.exit_code, "0 missing" in result.output) == (0, True), result.output
    (folder / "more.py").write_text("import ray.data\n\nray.data.range(3)\nfrom ray.tune import Nothing\n")
    result = muster("compat", "--library", "rayuser")
    named = [line.split(": ")[:2] for line in result.output.splitlines()[:-1]]
    assert named == [
        ["rayuser/more.py:1", "ray.data"],
        ["rayuser/more.py:4", "ray.tune.Nothing"],
        ["rayuser/more.py:3", "ray.data.range"],
    ]
    assert result.exit_code == 1


def test_the_session_of_trainers_stays_with_ray():
    script = "from ray.air import session, ScalingConfig\nfrom ray.train.torch import TorchTrainer\n"
    assert rewritten(script) == script


def test_an_import_of_ray_that_nothing_uses_is_named(tmp_path):
    (tmp_path / "train.py").write_text("import ray\nfrom ray import tune\ntune.report({})\n")
    (finding,) = examine(tmp_path / "train.py").findings
    assert finding[:2] == (1, "ray")


@pytest.mark.parametrize(("has_ray", "code"), [(True, 0), (False, 1)])
def test_what_only_ray_has_is_missing_where_ray_is_not_installed(
    muster, tmp_path, monkeypatch, has_ray, code
):
    monkeypatch.setattr(compat, "find_spec", lambda name: name if has_ray else None)
    (tmp_path / "train.py").write_text("import ray\nray.init()\n")
    result = muster("compat", str(tmp_path / "train.py"))
    assert (result.exit_code, "1 from Ray itself" in result.output) == (code, True)


@pytest.mark.parametrize(
    ("owner", "keyword"),
    [
        (tune.RunConfig, "local_dir"),
        (tune.Experiment, "local_dir"),
        (tune.run, "local_dir"),
        (tune.run, "chdir_to_trial_dir"),
        (tune.TuneConfig, "chdir_to_trial_dir"),
    ],
)
def test_parameters_that_compat_calls_refused_are_refused(owner, keyword):
    assert keyword in compat.REFUSED
    given = () if "Config" in owner.__name__ else ("e", print) if owner is tune.Experiment else (print,)
    with pytest.raises(DeprecationWarning, match=keyword):
        owner(*given, **{keyword: "x"})


def test_an_experiment_of_ray_is_read(muster, tmp_path):
    rays = tmp_path / "rays"
    shutil.copytree(RAY_EXPERIMENT, rays)
    shown = muster("compat", "--experiment", str(rays))
    assert (shown.exit_code, f"{rays}-muster: 3 trials" in shown.output) == (0, True)
    listed = muster("tune", "ls", f"{rays}-muster").output
    assert "3 trials: 2 TERMINATED, 1 ERROR" in listed
    assert (
        "loss = 0.333333"
        in muster("tune", "best", f"{rays}-muster", "--metric", "loss", "--mode", "min").output
    )
    again = muster("compat", "--experiment", str(rays))
    assert (again.exit_code, f"{rays}-muster" in again.output) == (2, True)
    assert muster("compat").exit_code == 2
    assert " --experiment" in muster("tune", "show", str(rays)).output
