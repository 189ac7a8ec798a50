from __future__ import annotations

import pickle

import pytest
from tests.tune.logger.harness import LoggerHarness, make_trial

aim = pytest.importorskip(
    "aim", reason="pip install aim (300 MB, and older versions of what CI needs: not in every CI run)"
)

from muster.tune.logger.aim import AimLoggerCallback  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Aim's own code
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]


def run(tmp_path, callback):
    """Two trials, of which one fails; what Aim's repository says of each."""
    directory = tmp_path / "exp"
    harness = LoggerHarness(directory, [callback])
    trials = [make_trial(name, {"x": 1, "net": {"w": [2]}}, experiment_dir=str(directory)) for name in "ab"]
    for trial in trials:
        harness.start(trial)
    for step in (1, 2):
        for trial in trials:
            harness.report(trial, step, loss=1.0 / step, deep={"er": step}, note="text")
    harness.complete(trials[0])
    harness.fire("on_trial_error", trials[1])
    harness.hooks.fire("on_experiment_end", iteration=0, trials=trials)
    harness.writer.close(30)
    found = {}
    for hash_ in aim.Repo.from_path(str(directory)).list_all_runs():
        # Opened for writing: what is read-only shows what was indexed, which happens later.
        kept = aim.Run(hash_, repo=str(directory), system_tracking_interval=None, capture_terminal_logs=False)
        values = {m.name: sorted(m.values.values_list()) for m in kept.metrics()}
        found[kept["trial_id"]] = (kept.name, kept.experiment, kept["hparams"], values, kept["failed"])
        kept.close()
    return found


@pytest.mark.conformance("C-201")
def test_runs_stand_in_the_experiments_directory_with_config_results_and_end(tmp_path):
    values = {"loss": [0.5, 1.0], "deep/er": [1.0, 2.0]}
    hparams = {"x": 1, "net/w": [2]}
    assert run(tmp_path, AimLoggerCallback()) == {
        "a": ("f_a", "exp", hparams, values, False),
        "b": ("f_b", "exp", hparams, values, True),
    }


@pytest.mark.conformance("C-201")
def test_metrics_can_be_chosen_but_not_none_at_all(tmp_path):
    found = run(tmp_path, AimLoggerCallback(experiment_name="mine", metrics=["loss"]))
    told = [(experiment, values) for _, experiment, _, values, _ in found.values()]
    assert told == [("mine", {"loss": [0.5, 1.0]})] * 2
    with pytest.raises(ValueError, match=r"AimLoggerCallback\(metrics=\[\]\)"):
        AimLoggerCallback(metrics=[])


def test_it_can_be_saved_with_the_experiment():
    assert pickle.loads(pickle.dumps(AimLoggerCallback(metrics=["loss"]))).metrics == ["loss"]
