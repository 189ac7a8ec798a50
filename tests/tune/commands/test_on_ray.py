"""Commands on the Ray engine: results, a stop, and an actor that Ray kills."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest
from tests.tune.commands.test_runner import TREE, processes_with

DRIVER = """
    import sys
    from pathlib import Path
    from muster import tune

    storage, tree = sys.argv[1:]
    def fit(command, space, stop=None, failures=0):
        return tune.Tuner(
            command,
            param_space=space,
            tune_config=tune.TuneConfig(metric="loss", mode="min", max_concurrent_trials=2),
            run_config=tune.RunConfig(storage_path=storage, verbose=0, stop=stop, engine="ray",
                                      failure_config=tune.FailureConfig(max_failures=failures)),
        ).fit()

    env = {"MUSTER_TEST_TREE": storage}
    command = tune.command(f"sh {tree} {{kind}}", env=env, grace_s=0.1)
    stopped = fit(command, {"kind": tune.grid_search([0, 1, 2, 3])}, stop={"training_iteration": 1})
    print("stopped", len(stopped), stopped.num_errors)
    code = "from muster import tune; [tune.report({'loss': 1.0 / n}) for n in (1, 2)]"
    child = fit(tune.command([sys.executable, "-c", code]), {})
    print("child", *child[0].metrics_dataframe["loss"])
    # The actor dies as by `ray kill`: nobody above it can end what it has started.
    line = "echo '{\\"loss\\": 1}'; sleep 0.5; kill -9 $(ps -o ppid= -p $(ps -o ppid= -p $$)); sleep 300"
    killed = fit(tune.command(line, shell=True, env=env), {})
    print("killed", killed.num_errors)
    bad = fit(tune.command("sh -c true", cwd="/no/such/place"), {})
    print("cwd", "/no/such/place" in str(bad.errors[0]))
"""


@pytest.mark.ray
def test_trees_of_commands_end_with_their_trial_and_with_their_actor(plain_head, tmp_path):
    (tmp_path / "tree.sh").write_text(TREE)
    words = [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path), str(tmp_path / "tree.sh")]
    env = {**os.environ, **plain_head.environment()}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=400, check=False)
    lines = [
        line for line in done.stdout.splitlines() if line.startswith(("stopped", "child", "killed", "cwd"))
    ]
    assert lines == ["stopped 4 0", "child 1.0 0.5", "killed 1", "cwd True"], done.stderr[-3000:]
    assert processes_with(f"MUSTER_TEST_TREE={tmp_path}") == []
