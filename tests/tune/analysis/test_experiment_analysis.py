from __future__ import annotations

import pickle
import re
import shutil

import pytest
from tests.support.builders import created, exited, reported, saved, started
from tests.tune.experiments import add_checkpoint, logged_row, trial, write_json

from muster.stores.experiment.store import SqliteTrialStore
from muster.trials.events import TrialFailure, TrialFailureKind
from muster.trials.metrics import flatten
from muster.trials.model import CheckpointPolicy, CheckpointRef, Trial
from muster.trials.states import TrialState
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.result_grid import ResultGrid

NAN = float("nan")


def analysis(root, losses: dict[str, list[float]], **defaults) -> ExperimentAnalysis:
    trials = [trial(root, name, values) for name, values in losses.items()]
    return ExperimentAnalysis(root, trials=trials, **defaults)


@pytest.fixture
def two(tmp_path):
    losses = {"t1": [9.0, 1.0, 5.0], "t2": [4.0, 4.0, 4.0]}
    return analysis(tmp_path, losses, default_metric="loss", default_mode="min")


def test_the_best_of_everything(two):
    assert (two.best_trial.trial_id, two.best_config["lr"], two.best_result["loss"]) == ("t2", 0.2, 4.0)
    assert two.best_dataframe["loss"].tolist() == [4.0, 4.0, 4.0]
    assert two.best_result_df["loss"].to_dict() == {"t2": 4.0}
    assert two.get_best_trial("loss", "min", "all").trial_id == "t1"
    assert two.get_best_config(scope="all")["lr"] == 0.1


@pytest.mark.parametrize(
    "name",
    ["best_trial", "best_config", "best_checkpoint", "best_dataframe", "best_result", "best_result_df"],
)
def test_what_is_best_needs_metric_and_mode(tmp_path, name):
    bare = analysis(tmp_path, {"t1": [1.0]})
    with pytest.raises(ValueError, match=f"ExperimentAnalysis.*{name}"):
        getattr(bare, name)


def test_a_mode_alone_is_about_what_trainables_return(tmp_path):
    assert ExperimentAnalysis(tmp_path, trials=[], default_mode="min").default_metric == "_metric"
    with pytest.raises(ValueError, match=r"min.*max"):
        ExperimentAnalysis(tmp_path, trials=[], default_mode="up")


def test_without_a_candidate_there_is_no_best_trial_but_a_warning(tmp_path, caplog):
    empty = analysis(tmp_path, {"t1": [NAN], "t2": []}, default_metric="loss", default_mode="min")
    assert (empty.best_trial, empty.best_config) == (None, None)
    assert all(word in caplog.records[0].getMessage() for word in (str(tmp_path), "'loss'"))
    with pytest.raises(ValueError, match=r"ExperimentAnalysis\.best_result.*loss"):
        _ = empty.best_result


def test_a_nested_metric_is_found_by_its_flat_name(tmp_path):
    made = trial(tmp_path, "t1", [])
    write_json(
        tmp_path / "t1",
        [logged_row("t1", 1, {}, test={"acc": 0.7}), logged_row("t1", 2, {}, test={"acc": 0.6})],
    )
    found = ExperimentAnalysis(tmp_path, trials=[made])
    assert found.get_best_trial("test/acc", "max").metric_analysis["test/acc"] == pytest.approx(
        {"max": 0.7, "min": 0.6, "avg": 0.65, "last": 0.6, "last-5-avg": 0.65, "last-10-avg": 0.65}
    )
    assert found.dataframe("test/acc", "max")["test/acc"].tolist() == [0.7]


def test_results_and_configs_by_trial(two):
    assert {name: result["loss"] for name, result in two.results.items()} == {"t1": 5.0, "t2": 4.0}
    assert two.results_df["loss"].to_dict() == {"t1": 5.0, "t2": 4.0}
    assert two.get_all_configs() == {
        "t1": {"lr": 0.1, "net": {"width": 4}},
        "t2": {"lr": 0.2, "net": {"width": 4}},
    }
    assert two.get_all_configs(prefix=True)["t1"] == {"config/lr": 0.1, "config/net/width": 4}
    assert {name: len(table) for name, table in two.trial_dataframes.items()} == {"t1": 3, "t2": 3}


def test_the_delimiter_of_result_tables_comes_from_the_environment(two, monkeypatch):
    monkeypatch.setenv("TUNE_RESULT_DELIM", ".")
    assert "config.net.width" in two.results_df.columns


@pytest.mark.conformance("C-212")
def test_missing_and_damaged_logs_only_warn(tmp_path, caplog):
    made = analysis(tmp_path, {"t1": [1.0], "t2": [2.0], "t3": [3.0]})
    (tmp_path / "t1" / "result.json").unlink()
    (tmp_path / "t2" / "result.json").write_text("{broken\n{}\n", encoding="utf-8")
    assert {name: len(table) for name, table in made.trial_dataframes.items()} == {"t1": 0, "t2": 0, "t3": 1}
    (warning,) = [record.getMessage() for record in caplog.records]
    assert re.findall(r"^  (\w+): ", warning, re.M) == ["train_t1", "train_t2"]
    assert made.dataframe()["logdir"].tolist() == ["t3"]


def test_a_metric_that_a_trial_never_logged_leaves_it_out(tmp_path, caplog):
    made = analysis(tmp_path, {"t1": [1.0], "t2": [2.0]})
    write_json(tmp_path / "t2", [logged_row("t2", 1, {}, other=1)])
    assert made.dataframe("loss", "min")["logdir"].tolist() == ["t1"]
    (record,) = caplog.records
    assert all(word in record.getMessage().split() for word in ("t2", "'loss'"))


def test_a_metric_without_a_mode_shows_the_last_results(two, caplog):
    assert two.dataframe("loss")["loss"].tolist() == [5.0, 4.0]
    (record,) = caplog.records
    assert "metric='loss'" in record.getMessage()


@pytest.mark.conformance("C-213")
def test_last_and_best_checkpoint(tmp_path, caplog):
    kept = tuple(
        add_checkpoint(tmp_path / "t1", index, loss=loss, n={"b": -loss})
        for index, loss in ((0, 3.0), (1, NAN), (2, 5.0))
    )
    owner = trial(tmp_path, "t1", [3.0, NAN, 5.0], retained=kept, newest=kept[2])
    other = trial(tmp_path, "t2", [8.0], retained=())
    found = ExperimentAnalysis(tmp_path, trials=[owner, other], default_metric="loss", default_mode="min")
    assert found.get_best_checkpoint(owner).path == kept[0].path
    assert found.get_best_checkpoint(owner, "loss", "max").path == kept[2].path
    assert found.get_best_checkpoint(owner, "n/b", "max").path == kept[0].path
    assert found.best_checkpoint.path == kept[0].path
    assert found.get_last_checkpoint(owner).path == kept[2].path
    assert found.get_last_checkpoint().path == kept[2].path
    assert found.get_last_checkpoint(other) is None
    assert found.get_best_checkpoint(other) is None
    assert caplog.records[-1].levelname == "ERROR"
    assert all(word in caplog.records[-1].getMessage().split() for word in ("t2", "'loss'"))


@pytest.mark.conformance("C-214")
def test_a_pickled_analysis_is_usable(two):
    assert len(two.trial_dataframes) == 2
    again = pickle.loads(pickle.dumps(two))
    assert (again.best_trial.trial_id, again.best_trial.status, len(again.trials)) == ("t2", "TERMINATED", 2)
    assert again.dataframe()["loss"].tolist() == [5.0, 4.0]


def test_trials_of_the_controller_are_taken_as_they_are(tmp_path):
    running = Trial(
        "train",
        trial_id="a1",
        config={"lr": 1},
        experiment_tag="0_lr=1",
        checkpoint_policy=CheckpointPolicy(num_to_keep=1),
        relative_logdir="train_a1_dir",
    )
    for step, loss in ((1, 3.0), (2, 2.0)):
        result = logged_row("a1", step, {"lr": 1}, loss=loss)
        running.note_result(result, flatten(result), at=float(step))
    running.state = TrialState.TERMINATED
    old, new = (CheckpointRef(path=f"/x/checkpoint_{index}", index=index) for index in (0, 1))
    running.checkpoints = (old, new)
    found = ExperimentAnalysis(tmp_path, trials=[running], default_metric="loss", default_mode="min")
    best = found.best_trial
    assert (str(best), best.status, best.path) == ("train_a1", "TERMINATED", str(tmp_path / "train_a1_dir"))
    assert (best.trainable_name, best.experiment_tag, best.config) == ("train", "0_lr=1", {"lr": 1})
    assert best.metric_analysis["loss"]["last"] == 2.0
    assert best.checkpoint.path == new.path
    assert [each.path for each, _ in best.best_checkpoints] == [new.path]


def stored(root):
    """An experiment of two trials as the controller leaves it: facts in the store, logs beside it."""
    ref = add_checkpoint(root / "train_a_dir", 0, loss=2.0)
    failure = TrialFailure(
        kind=TrialFailureKind.USER_ERROR,
        message="boom",
        traceback="line 1",
        exception=pickle.dumps(KeyError("k")),
    )
    facts = [created("a", {"lr": 0.5}), created("b", {"lr": 0.7}), started("a"), started("b")]
    facts += [reported("a", 1, loss=4.0), reported("a", 2, loss=2.0), saved("a", ref), exited("a")]
    facts += [reported("b", 1, loss=3.0), exited("b", failure)]
    with SqliteTrialStore(root, wait_s=0.0) as store:
        store.append(facts)
    write_json(
        root / "train_a_dir",
        [logged_row("a", 1, {"lr": 0.5}, loss=4.0), logged_row("a", 2, {"lr": 0.5}, loss=2.0)],
    )
    write_json(root / "train_b_dir", [logged_row("b", 1, {"lr": 0.7}, loss=3.0)])
    return root


def check_stored(found: ExperimentAnalysis) -> None:
    assert [(each.trial_id, each.status, str(each)) for each in found.trials] == [
        ("a", "TERMINATED", "train_a"),
        ("b", "ERROR", "train_b"),
    ]
    assert (found.best_trial.trial_id, found.best_config) == ("a", {"lr": 0.5})
    grid = ResultGrid(found)
    assert [repr(error) for error in grid.errors] == ["KeyError('k')"]
    assert (grid.num_errors, grid.num_terminated) == (1, 1)
    assert grid[0].checkpoint.path == f"{found.experiment_path}/train_a_dir/checkpoint_000000"
    assert [metrics for _, metrics in grid[0].best_checkpoints] == [{"loss": 2.0}]
    assert grid.get_dataframe()["loss"].tolist() == [2.0, 3.0]


def test_an_experiment_is_read_from_its_directory_or_its_state_file(tmp_path):
    root = stored(tmp_path / "exp")
    for path in (root, str(root), root / "experiment.sqlite", f"{root}/"):
        check_stored(ExperimentAnalysis(path, default_metric="loss", default_mode="min"))


def test_an_experiment_is_read_from_a_path_below_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(stored(tmp_path / "exp").parent))
    found = ExperimentAnalysis("~/exp", default_metric="loss", default_mode="min")
    assert found.experiment_path == str(tmp_path / "exp")
    check_stored(found)


def test_a_moved_experiment_is_read_where_it_is_now(tmp_path):
    root = shutil.move(stored(tmp_path / "exp"), tmp_path / "moved")
    found = ExperimentAnalysis(root, default_metric="loss", default_mode="min")
    assert found.experiment_path == str(tmp_path / "moved")
    check_stored(found)


def test_an_experiment_is_read_from_any_filesystem(tmp_path):
    from fsspec.implementations.memory import MemoryFileSystem

    memory = MemoryFileSystem()
    memory.put(str(stored(tmp_path / "exp")), "/analysed/exp", recursive=True)
    for found in (
        ExperimentAnalysis("memory://analysed/exp", default_metric="loss", default_mode="min"),
        ExperimentAnalysis(
            "/analysed/exp", storage_filesystem=memory, default_metric="loss", default_mode="min"
        ),
    ):
        check_stored(found)


def test_a_directory_without_a_store_is_no_experiment(tmp_path):
    with pytest.raises(ValueError, match=r"experiment\.sqlite.*fit\(\)"):
        ExperimentAnalysis(tmp_path)
    with pytest.raises(ValueError, match=r"^/nothing/here\b.*experiment\.sqlite"):
        ExperimentAnalysis("memory://nothing/here")
